package main

// RocketMQ remoting: closed-loop send, pull and pop, as Java clients put it on the wire.
//
//	loadgen rsend -addr H:P -topic T -conns 4 -inflight 256 -size 1024 -batch 1
//	loadgen rpull -addr H:P -topic T -conns 4
//	loadgen rpop  -addr H:P -topic T -conns 4

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type frame struct {
	code   int
	opaque int
	fields map[string]string
	body   []byte
}

type remotingConn struct {
	socket net.Conn
	reader *bufio.Reader
	writer *bufio.Writer
	data   []byte // of the answer that was read last
}

func dialRemoting(addr string) (*remotingConn, error) {
	socket, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &remotingConn{
		socket: socket, reader: bufio.NewReaderSize(socket, 1<<20), writer: bufio.NewWriterSize(socket, 1<<20),
	}, nil
}

// header is a JSON header up to its opaque, and from there on: what differs per request.
type header struct{ before, after string }

const headerEnd = `,"serializeTypeCurrentRPC":"JSON","version":493}`

func newHeader(code int, fields map[string]string) header {
	text, _ := json.Marshal(fields)
	return header{
		fmt.Sprintf(`{"code":%d,"extFields":%s,"flag":0,"language":"JAVA","opaque":`, code, text),
		headerEnd,
	}
}

func (c *remotingConn) write(h header, opaque int, body []byte) error {
	number := strconv.Itoa(opaque)
	size := len(h.before) + len(number) + len(h.after)
	var head [8]byte
	binary.BigEndian.PutUint32(head[:], uint32(4+size+len(body)))
	binary.BigEndian.PutUint32(head[4:], uint32(size))
	c.writer.Write(head[:])
	c.writer.WriteString(h.before)
	c.writer.WriteString(number)
	c.writer.WriteString(h.after)
	_, err := c.writer.Write(body)
	return err
}

// read returns the next answer, valid until the next one; its fields are only parsed if they are wanted.
func (c *remotingConn) read(wantsFields bool) (frame, error) {
	var f frame
	for {
		var head [8]byte
		if _, err := io.ReadFull(c.reader, head[:]); err != nil {
			return f, err
		}
		total := int(binary.BigEndian.Uint32(head[:]))
		size := int(binary.BigEndian.Uint32(head[4:]) & 0xffffff)
		if cap(c.data) < total {
			c.data = make([]byte, total)
		}
		data := c.data[:total-4]
		if _, err := io.ReadFull(c.reader, data); err != nil {
			return f, err
		}
		text := data[:size]
		if intMember(text, "flag")&1 == 0 {
			continue // a request of the server: members changed
		}
		f.code, f.opaque, f.body = intMember(text, "code"), intMember(text, "opaque"), data[size:]
		if wantsFields {
			var parsed struct{ ExtFields map[string]string }
			if err := json.Unmarshal(text, &parsed); err != nil {
				return f, err
			}
			f.fields = parsed.ExtFields
		}
		return f, nil
	}
}

// intMember finds "name":<number> in a header: no JSON parser on the hot path.
func intMember(text []byte, name string) int {
	at := bytes.Index(text, []byte(`"`+name+`":`))
	if at < 0 {
		return 0
	}
	value := 0
	for _, c := range text[at+len(name)+3:] {
		if c < '0' || c > '9' {
			break
		}
		value = value*10 + int(c-'0')
	}
	return value
}

func records(body []byte) int {
	count := 0
	for len(body) >= 4 {
		body = body[binary.BigEndian.Uint32(body):]
		count++
	}
	return count
}

// ── send ────────────────────────────────────────────────────────────────────────────────

// sender makes the requests of one connection; what does not change is made once.
type sender struct {
	o          options
	worker     int
	body       []byte
	code       int
	head       []byte
	batch      []byte
	keys       []int // where each member of the batch has its unique key
	keysOf     int   // number >> 16 that the keys were written with
	properties []byte
}

const keyBytes = 32

func newSender(o options, worker int) *sender {
	s := &sender{o: o, worker: worker, body: bytes.Repeat([]byte("x"), o.size), code: 310, keysOf: -1}
	if o.batch > 1 {
		s.code = 320
		s.batch, s.keys = batchBody(s.body, o.batch)
	}
	return s
}

// batchBody is a client batch, and where its members have their unique keys.
func batchBody(body []byte, count int) ([]byte, []int) {
	var out bytes.Buffer
	var keys []int
	const before, after = "UNIQ_KEY\x01", "\x02WAIT\x01true\x02"
	size := len(before) + keyBytes + len(after)
	for i := 0; i < count; i++ {
		var head [20]byte
		binary.BigEndian.PutUint32(head[:], uint32(20+len(body)+2+size))
		binary.BigEndian.PutUint32(head[8:], crc32.ChecksumIEEE(body))
		binary.BigEndian.PutUint32(head[16:], uint32(len(body)))
		out.Write(head[:])
		out.Write(body)
		out.Write([]byte{byte(size >> 8), byte(size)})
		out.WriteString(before)
		keys = append(keys, out.Len())
		out.Write(make([]byte, keyBytes))
		out.WriteString(after)
	}
	return out.Bytes(), keys
}

const hexDigits = "0123456789ABCDEF"

func putHex(to []byte, value uint64) {
	for i := len(to) - 1; i >= 0; i-- {
		to[i] = hexDigits[value&15]
		value >>= 4
	}
}

func putKey(to []byte, worker, n int) {
	copy(to, "7F000001")
	putHex(to[8:12], uint64(worker))
	putHex(to[12:28], uint64(n)>>16)
	putHex(to[28:32], uint64(n))
}

// members numbers the members of the n-th batch: mostly the last four digits of their keys change.
func (s *sender) members(n int) []byte {
	first := n * len(s.keys)
	last := first + len(s.keys) - 1
	isSame := first>>16 == s.keysOf && last>>16 == s.keysOf
	for i, at := range s.keys {
		if isSame {
			putHex(s.batch[at+28:at+32], uint64(first+i))
		} else {
			putKey(s.batch[at:at+keyBytes], s.worker, first+i)
		}
	}
	s.keysOf = -1
	if first>>16 == last>>16 {
		s.keysOf = first >> 16
	}
	return s.batch
}

// request is the header and the body of the n-th send.
func (s *sender) request(topic string, queue, n int) (header, []byte) {
	var key [keyBytes]byte
	putKey(key[:], s.worker, n)
	body, isBatch := s.body, s.o.batch > 1
	if isBatch {
		body = s.members(n)
	}
	h := s.head[:0]
	h = append(h, `{"code":`...)
	h = strconv.AppendInt(h, int64(s.code), 10)
	h = append(h, `,"extFields":{"a":"bench","b":"`...)
	h = append(h, topic...)
	h = append(h, `","c":"TBW102","d":"4","e":"`...)
	h = strconv.AppendInt(h, int64(queue), 10)
	h = append(h, `","f":"0","g":"`...)
	h = strconv.AppendInt(h, time.Now().UnixMilli(), 10)
	h = append(h, `","h":"0","i":"UNIQ_KEY\u0001`...)
	h = append(h, key[:]...)
	h = append(h, `\u0002WAIT\u0001true\u0002","j":"0","k":"false","m":"`...)
	h = strconv.AppendBool(h, isBatch)
	h = append(h, `","n":"broker-a"},"flag":0,"language":"JAVA","opaque":`...)
	s.head = h
	return header{string(h), headerEnd}, body
}

func (c *remotingConn) sendLoop(o options, worker int, count *atomic.Int64, lat *latencies) error {
	started := make([]int64, o.inflight)
	free := make(chan int, o.inflight)
	for i := 0; i < o.inflight; i++ {
		free <- i
	}
	go func() {
		s := newSender(o, worker)
		for n := 0; ; n++ {
			slot := <-free
			topic, queue := o.topic, (worker+n)%o.queues
			if o.topics > 1 { // every topic and queue in turn, neighbours far from one another
				turn := (o.from + n*o.conns + worker) * 7919
				topic += strconv.Itoa(turn % o.topics)
				queue = turn / o.topics % o.queues
			}
			h, message := s.request(topic, queue, n)
			atomic.StoreInt64(&started[slot], time.Now().UnixNano())
			if c.write(h, slot, message) != nil {
				return
			}
			if len(free) == 0 {
				c.writer.Flush()
			}
		}
	}()
	for {
		f, err := c.read(false)
		if err != nil {
			return err
		}
		if f.code != 0 {
			return fmt.Errorf("send answered %d", f.code)
		}
		if phase.Load() == 1 {
			lat.add(time.Now().UnixNano() - atomic.LoadInt64(&started[f.opaque]))
		}
		count.Add(int64(o.batch))
		free <- f.opaque
	}
}

// ── pull ────────────────────────────────────────────────────────────────────────────────

func (c *remotingConn) pullLoop(o options, worker int, count *atomic.Int64, lat *latencies) error {
	offset := "0"
	for {
		h := newHeader(11, map[string]string{
			"consumerGroup": "bench", "topic": o.topic, "queueId": strconv.Itoa(worker % o.queues),
			"queueOffset": offset, "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
			"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
			"bname": "broker-a",
		})
		start := time.Now().UnixNano()
		c.write(h, 1, nil)
		if err := c.writer.Flush(); err != nil {
			return err
		}
		f, err := c.read(true)
		if err != nil {
			return err
		}
		switch f.code {
		case 0:
			count.Add(int64(records(f.body)))
			offset = f.fields["nextBeginOffset"]
		case 19: // the end: once more from the start
			offset = f.fields["minOffset"]
		case 20, 21:
			offset = f.fields["nextBeginOffset"]
		default:
			return fmt.Errorf("pull answered %d", f.code)
		}
		if phase.Load() == 1 {
			lat.add(time.Now().UnixNano() - start)
		}
	}
}

// ── pop and ack ─────────────────────────────────────────────────────────────────────────

var errEmpty = errors.New("the backlog is used up")

func (c *remotingConn) popLoop(o options, worker int, count *atomic.Int64, lat *latencies) error {
	pop := newHeader(200050, map[string]string{
		"consumerGroup": "bench-pop", "topic": o.topic, "queueId": "-1", "maxMsgNums": "32",
		"invisibleTime": "60000", "pollTime": "1000", "bornTime": "0", "initMode": "0",
		"expType": "TAG", "exp": "*", "order": "false", "bname": "broker-a",
	})
	for {
		start := time.Now().UnixNano()
		c.write(pop, 0, nil)
		if err := c.writer.Flush(); err != nil {
			return err
		}
		f, err := c.read(true)
		if err != nil {
			return err
		}
		if f.code != 0 {
			if phase.Load() == 1 {
				return errEmpty
			}
			continue
		}
		acks, err := ackHeaders(o.topic, f.fields)
		if err != nil {
			return err
		}
		for i, h := range acks {
			c.write(h, i+1, nil)
		}
		c.writer.Flush()
		for range acks {
			if f, err = c.read(false); err != nil {
				return err
			}
			if f.code != 0 {
				return fmt.Errorf("ack answered %d", f.code)
			}
		}
		if phase.Load() == 1 {
			lat.add(time.Now().UnixNano() - start)
		}
		count.Add(int64(len(acks)))
	}
}

func ackHeaders(topic string, fields map[string]string) ([]header, error) {
	starts := map[string]string{}
	for _, part := range strings.Split(fields["startOffsetInfo"], ";") {
		words := strings.Split(part, " ")
		starts[words[0]+" "+words[1]] = words[2]
	}
	var found []header
	for _, part := range strings.Split(fields["msgOffsetInfo"], ";") {
		words := strings.Split(part, " ")
		if len(words) != 3 {
			return nil, fmt.Errorf("msgOffsetInfo %q", part)
		}
		for _, offset := range strings.Split(words[2], ",") {
			handle := strings.Join([]string{
				starts[words[0]+" "+words[1]], fields["popTime"], fields["invisibleTime"],
				fields["reviveQid"], words[0], "broker-a", words[1], offset,
			}, " ")
			found = append(found, newHeader(200051, map[string]string{
				"consumerGroup": "bench-pop", "topic": topic, "queueId": words[1],
				"extraInfo": handle, "offset": offset, "bname": "broker-a",
			}))
		}
	}
	return found, nil
}

// ── run ─────────────────────────────────────────────────────────────────────────────────

type remotingLoop func(*remotingConn, options, int, *atomic.Int64, *latencies) error

func runRemoting(o options, loop remotingLoop) {
	var count atomic.Int64
	var ready sync.WaitGroup
	lat := make([]*latencies, o.conns)
	for i := range lat {
		lat[i] = &latencies{}
		ready.Add(1)
		go func(i int) {
			c, err := dialRemoting(o.addr)
			fail(err)
			ready.Done()
			fail(loop(c, o, i, &count, lat[i]))
		}(i)
	}
	ready.Wait()
	measure(o, &count, lat)
}
