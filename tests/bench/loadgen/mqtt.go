package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// client is one MQTT 3.1.1 connection with its own read buffer.
type client struct {
	conn   net.Conn
	buf    []byte
	lo, hi int
}

var started = time.Now()

func now() int64 { return int64(time.Since(started)) }

func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func packet(first byte, body []byte) []byte {
	b := []byte{first}
	for n := len(body); ; {
		x := byte(n & 127)
		if n >>= 7; n > 0 {
			b = append(b, x|128)
			continue
		}
		return append(append(b, x), body...)
	}
}

func connect(addr, id string) (*client, error) { return connectSized(addr, id, 256<<10) }

// keepSessions: CONNECT says that the session outlives the connection.
var keepSessions atomic.Bool

// connectSized: bufBytes is what one read takes; 0 for who never reads on.
func connectSized(addr, id string, bufBytes int) (*client, error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return nil, err
	}
	flags := byte(2)
	if keepSessions.Load() {
		flags = 0
	}
	body := append(text(nil, "MQTT"), 4, flags, 0, 0)
	if _, err = conn.Write(packet(0x10, text(body, id))); err != nil {
		return nil, err
	}
	var ack [4]byte
	if _, err = io.ReadFull(conn, ack[:]); err != nil {
		return nil, err
	}
	if ack[0] != 0x20 || ack[3] != 0 {
		return nil, fmt.Errorf("CONNACK %x", ack)
	}
	return &client{conn: conn, buf: make([]byte, bufBytes)}, nil
}

func (c *client) subscribe(filter string, qos int) error {
	return c.subscribeAll([]string{filter}, qos)
}

func (c *client) subscribeAll(filters []string, qos int) error {
	body := []byte{0, 1}
	for _, filter := range filters {
		body = append(text(body, filter), byte(qos))
	}
	if _, err := c.conn.Write(packet(0x82, body)); err != nil {
		return err
	}
	for {
		if err := c.fill(); err != nil {
			return err
		}
		if first, _, ok := c.next(); ok && first == 0x90 {
			return nil
		}
	}
}

// fill reads once; next cuts whole packets off what was read.
func (c *client) fill() error {
	if c.lo > 0 {
		copy(c.buf, c.buf[c.lo:c.hi])
		c.hi -= c.lo
		c.lo = 0
	}
	n, err := c.conn.Read(c.buf[c.hi:])
	c.hi += n
	if n > 0 {
		return nil
	}
	return err
}

func (c *client) next() (first byte, body []byte, ok bool) {
	length, shift := 0, 0
	for i := c.lo + 1; i < c.hi; i++ {
		length |= int(c.buf[i]&127) << shift
		shift += 7
		if c.buf[i] < 128 {
			if end := i + 1 + length; end <= c.hi {
				first, body, ok = c.buf[c.lo], c.buf[i+1:end], true
				c.lo = end
			}
			return
		}
	}
	return
}

// publishLoop keeps o.inflight publishes unacknowledged: all that one read acknowledges is sent
// again in one write. With a room (end to end) the subscribers' pace bounds it too.
func (c *client) publishLoop(o options, topic string, count *atomic.Int64, lat *latencies, r *room) error {
	head := text(nil, topic)
	idAt := len(head)
	if o.qos > 0 {
		head = append(head, 0, 0)
	}
	bodyAt := len(head)
	model := packet(byte(0x30|o.qos<<1), append(head, make([]byte, o.size)...))
	shift := len(model) - bodyAt - o.size
	idAt, bodyAt = idAt+shift, bodyAt+shift
	mask := uint16(1) // packet ids are in use in turn: so many places are enough
	for int(mask) < o.inflight {
		mask = mask<<1 | 1
	}
	sentAt := make([]int64, int(mask)+1)
	out := make([]byte, 0, o.inflight*len(model))
	free, id, isPinging := o.inflight, uint16(0), false
	for phase.Load() < 2 {
		n := free
		if r != nil {
			n = r.take(n, free == o.inflight)
		}
		out = out[:0]
		stamp := now()
		for i := 0; i < n; i++ {
			at := len(out)
			out = append(out, model...)
			if o.qos > 0 {
				if id++; id == 0 {
					id = 1
				}
				sentAt[id&mask] = stamp
				binary.BigEndian.PutUint16(out[at+idAt:], id)
			}
			if o.size >= 8 {
				binary.BigEndian.PutUint64(out[at+bodyAt:], uint64(stamp))
			}
		}
		free -= n
		if o.qos == 0 && r == nil { // PINGRESP proves that all before it was processed
			out, isPinging = append(out, 0xC0, 0), true
		}
		if len(out) > 0 {
			if _, err := c.conn.Write(out); err != nil {
				return err
			}
		}
		if o.qos == 0 && r != nil {
			free = o.inflight
			continue
		}
		if r != nil && free > 0 && free < o.inflight { // look for acks, but do not wait for them
			c.conn.SetReadDeadline(time.Now().Add(200 * time.Microsecond))
		} else if r != nil {
			c.conn.SetReadDeadline(time.Time{})
		}
		if free == o.inflight && !isPinging {
			continue
		}
		if err := c.fill(); err != nil {
			if e, ok := err.(net.Error); !ok || !e.Timeout() {
				return err
			}
		}
		done, at := 0, now()
		for {
			first, body, ok := c.next()
			if !ok {
				break
			}
			switch first & 0xF0 {
			case 0x40:
				if phase.Load() == 1 {
					lat.add(at - sentAt[binary.BigEndian.Uint16(body)&mask])
				}
				done++
			case 0xD0:
				done, isPinging = o.inflight-free, false
				if phase.Load() == 1 {
					lat.add(at - stamp)
				}
			}
		}
		free += done
		count.Add(int64(done))
	}
	return nil
}

// receiveLoop acknowledges all of one read in one write and gives room for as many more.
func (c *client) receiveLoop(o options, self int, count *atomic.Int64, lat *latencies, rooms []*room) error {
	acks := make([]byte, 0, 64<<10)
	given := make([]int, len(rooms))
	for phase.Load() < 2 {
		if err := c.fill(); err != nil {
			return err
		}
		acks = acks[:0]
		n, at := 0, now()
		for {
			first, body, ok := c.next()
			if !ok {
				break
			}
			if first&0xF0 != 0x30 {
				continue
			}
			size := int(binary.BigEndian.Uint16(body))
			source := int(body[1+size] - '0') // last digit of the topic
			payload := body[2+size:]
			if first&6 != 0 {
				acks = append(acks, 0x40, 2, payload[0], payload[1])
				payload = payload[2:]
			}
			if phase.Load() == 1 && len(payload) >= 8 {
				lat.add(at - int64(binary.BigEndian.Uint64(payload)))
			}
			n++
			if source < len(rooms) {
				given[source]++
			}
		}
		if len(acks) > 0 {
			if _, err := c.conn.Write(acks); err != nil {
				return err
			}
		}
		count.Add(int64(n))
		for i, k := range given {
			if k > 0 && (!o.fan || self == 0) {
				rooms[i].give(k)
			}
			given[i] = 0
		}
	}
	return nil
}

// room bounds the messages between a publisher and its subscribers.
type room struct {
	lock sync.Mutex
	cond *sync.Cond
	left int
}

func newRoom(size int) *room {
	r := &room{left: size}
	r.cond = sync.NewCond(&r.lock)
	return r
}

func (r *room) take(most int, wait bool) int {
	r.lock.Lock()
	defer r.lock.Unlock()
	for wait && r.left == 0 && phase.Load() < 2 {
		r.cond.Wait()
	}
	n := min(most, r.left)
	r.left -= n
	return n
}

func (r *room) give(n int) {
	r.lock.Lock()
	r.left += n
	r.lock.Unlock()
	r.cond.Signal()
}
