// AMQP 0-9-1: publishers of persistent messages to a durable queue of their own, confirmed; and
// the same with a consumer at each queue, who acknowledges.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

type amqpConn struct {
	conn net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
}

func shortText(s string) []byte { return append([]byte{byte(len(s))}, s...) }

func longText(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}

func amqpFrame(kind byte, channel uint16, payload []byte) []byte {
	f := append(make([]byte, 0, 8+len(payload)), kind)
	f = binary.BigEndian.AppendUint16(f, channel)
	f = binary.BigEndian.AppendUint32(f, uint32(len(payload)))
	return append(append(f, payload...), 0xCE)
}

// amqpMethod: class and method number, then the arguments.
func amqpMethod(channel uint16, class, method uint16, arguments ...[]byte) []byte {
	p := binary.BigEndian.AppendUint16(nil, class)
	p = binary.BigEndian.AppendUint16(p, method)
	for _, a := range arguments {
		p = append(p, a...)
	}
	return amqpFrame(1, channel, p)
}

// read: the payload of the next method frame.
func (c *amqpConn) read() ([]byte, error) {
	for {
		var head [7]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return nil, err
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(c.r, payload); err != nil {
			return nil, err
		}
		if head[0] == 1 {
			return payload[:len(payload)-1], nil
		}
	}
}

// call: send, and wait for the method that answers.
func (c *amqpConn) call(frame []byte, class, method uint16) error {
	c.w.Write(frame)
	if err := c.w.Flush(); err != nil {
		return err
	}
	p, err := c.read()
	if err == nil && (binary.BigEndian.Uint16(p) != class || binary.BigEndian.Uint16(p[2:]) != method) {
		err = fmt.Errorf("answered %q, not %d.%d", p, class, method)
	}
	return err
}

func dialAmqp(addr, queue, kind string) (*amqpConn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &amqpConn{conn, bufio.NewReaderSize(conn, 1<<16), bufio.NewWriterSize(conn, 1<<16)}
	none := []byte{0, 0, 0, 0}
	table := append(shortText("x-queue-type"), 'S')
	table = append(table, longText(kind)...)
	steps := []struct {
		frame         []byte
		class, method uint16
	}{
		{[]byte("AMQP\x00\x00\x09\x01"), 10, 10},
		{amqpMethod(0, 10, 11, none, shortText("PLAIN"), longText("\x00guest\x00guest"), shortText("en_US")), 10, 30},
		{append(amqpMethod(0, 10, 31, []byte{0, 16, 0, 2, 0, 0, 0, 0}),
			amqpMethod(0, 10, 40, shortText("/"), []byte{0, 0})...), 10, 41},
		{amqpMethod(1, 20, 10, []byte{0}), 20, 11},
		{amqpMethod(1, 50, 10, []byte{0, 0}, shortText(queue), []byte{2}, longText(string(table))), 50, 11},
		{amqpMethod(1, 85, 10, []byte{0}), 85, 11},
	}
	for _, s := range steps {
		if err := c.call(s.frame, s.class, s.method); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func publishFrames(queue string, size int) []byte {
	header := binary.BigEndian.AppendUint16(nil, 60)
	header = binary.BigEndian.AppendUint16(header, 0)
	header = binary.BigEndian.AppendUint64(header, uint64(size))
	header = append(header, 0x10, 0, 2) // delivery mode: persistent
	f := amqpMethod(1, 60, 40, []byte{0, 0, 0}, shortText(queue), []byte{0})
	f = append(f, amqpFrame(2, 1, header)...)
	return append(f, amqpFrame(3, 1, make([]byte, size))...)
}

// publishLoop keeps o.inflight publishes unconfirmed; each confirm makes room.
func (c *amqpConn) publishLoop(o options, queue string, count *atomic.Int64, lat *latencies) error {
	frames := publishFrames(queue, o.size)
	stamp := frames[len(frames)-1-o.size:]
	sent := make([]int64, o.inflight)
	room := make(chan int, o.inflight+1)
	room <- o.inflight
	var wrong error
	go func() {
		defer close(room)
		for done := uint64(0); ; {
			p, err := c.read()
			if err != nil || len(p) < 13 || p[1] != 60 || p[3] != 80 {
				wrong = fmt.Errorf("no confirm: %q %v", p, err)
				return
			}
			tag, first := binary.BigEndian.Uint64(p[4:]), binary.BigEndian.Uint64(p[4:])
			if p[12]&1 == 1 {
				first = done + 1
			}
			now := time.Now().UnixNano()
			if phase.Load() == 1 {
				for t := first; t <= tag; t++ {
					lat.add(now - atomic.LoadInt64(&sent[t%uint64(o.inflight)]))
				}
			}
			done = max(done, tag)
			count.Add(int64(tag - first + 1))
			room <- int(tag - first + 1)
		}
	}()
	for tag := uint64(1); ; {
		free, ok := <-room
		if !ok {
			return wrong
		}
		for more := true; more; {
			select {
			case n := <-room:
				free += n
			default:
				more = false
			}
		}
		for ; free > 0; free-- {
			now := time.Now().UnixNano()
			atomic.StoreInt64(&sent[tag%uint64(o.inflight)], now)
			binary.BigEndian.PutUint64(stamp, uint64(now))
			tag++
			c.w.Write(frames)
		}
		if err := c.w.Flush(); err != nil {
			return err
		}
	}
}

const (
	prefetch = 1000
	ackEvery = 100
)

// consumeLoop acknowledges in groups, and whatever came when nothing more is there to be read.
func (c *amqpConn) consumeLoop(queue string, count *atomic.Int64, lat *latencies) error {
	none := []byte{0, 0, 0, 0}
	qos := amqpMethod(1, 60, 10, none, binary.BigEndian.AppendUint16(nil, prefetch), []byte{0})
	if err := c.call(qos, 60, 11); err != nil {
		return err
	}
	c.w.Write(amqpMethod(1, 60, 20, []byte{0, 0}, shortText(queue), shortText("c"), []byte{0}, none))
	if err := c.w.Flush(); err != nil {
		return err
	}
	var head [7]byte
	var payload []byte
	var tag, acked, left uint64
	for {
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(head[3:])) + 1
		if cap(payload) < size {
			payload = make([]byte, size)
		}
		payload = payload[:size]
		if _, err := io.ReadFull(c.r, payload); err != nil {
			return err
		}
		switch head[0] {
		case 1:
			switch method := binary.BigEndian.Uint16(payload[2:]); method {
			case 60: // deliver: the tag of the consumer, then that of the delivery
				tag = binary.BigEndian.Uint64(payload[5+payload[4]:])
			case 21:
			default:
				return fmt.Errorf("method %d while consuming", method)
			}
			continue
		case 2:
			left = binary.BigEndian.Uint64(payload[4:])
			continue
		case 3:
			if phase.Load() == 1 {
				lat.add(time.Now().UnixNano() - int64(binary.BigEndian.Uint64(payload)))
			}
			left -= uint64(size - 1)
		default:
			continue
		}
		if left > 0 {
			return fmt.Errorf("a body in several frames")
		}
		count.Add(1)
		if tag-acked >= ackEvery || c.r.Buffered() == 0 {
			acked = tag
			c.w.Write(amqpMethod(1, 60, 80, binary.BigEndian.AppendUint64(nil, tag), []byte{1}))
			if err := c.w.Flush(); err != nil {
				return err
			}
		}
	}
}

func runAmqp(o options, consumes bool) {
	var count, published atomic.Int64
	var ready sync.WaitGroup
	lat := make([]*latencies, o.conns)
	for i := range lat {
		lat[i] = &latencies{}
		ready.Add(1)
		go func(i int) {
			queue := fmt.Sprintf("%s-%s-%d", o.name, o.kind, i)
			c, err := dialAmqp(o.addr, queue, o.kind)
			fail(err)
			if !consumes {
				ready.Done()
				fail(c.publishLoop(o, queue, &count, lat[i]))
			}
			reader, err := dialAmqp(o.addr, queue, o.kind)
			fail(err)
			go func() { fail(reader.consumeLoop(queue, &count, lat[i])) }()
			ready.Done()
			fail(c.publishLoop(o, queue, &published, &latencies{}))
		}(i)
	}
	ready.Wait()
	measure(o, &count, lat)
}
