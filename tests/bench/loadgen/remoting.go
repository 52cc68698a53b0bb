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
}

func dialRemoting(addr string) (*remotingConn, error) {
	socket, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &remotingConn{socket, bufio.NewReaderSize(socket, 1<<20), bufio.NewWriterSize(socket, 1<<20)}, nil
}

// header is a JSON header up to its opaque, and from there on: what differs per request.
type header struct{ before, after string }

func newHeader(code int, fields map[string]string) header {
	text, _ := json.Marshal(fields)
	return header{
		fmt.Sprintf(`{"code":%d,"extFields":%s,"flag":0,"language":"JAVA","opaque":`, code, text),
		`,"serializeTypeCurrentRPC":"JSON","version":493}`,
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

// read returns the next answer; its fields are only parsed if they are wanted.
func (c *remotingConn) read(wantsFields bool) (frame, error) {
	var f frame
	for {
		var head [8]byte
		if _, err := io.ReadFull(c.reader, head[:]); err != nil {
			return f, err
		}
		total := int(binary.BigEndian.Uint32(head[:]))
		size := int(binary.BigEndian.Uint32(head[4:]) & 0xffffff)
		data := make([]byte, total-4)
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

func sendFields(topic string, queue int, properties string, isBatch bool) map[string]string {
	return map[string]string{
		"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": strconv.Itoa(queue), "f": "0",
		"g": strconv.FormatInt(time.Now().UnixMilli(), 10), "h": "0", "i": properties, "j": "0",
		"k": "false", "m": strconv.FormatBool(isBatch), "n": "broker-a",
	}
}

func uniqueKey(worker, n int) string {
	return fmt.Sprintf("7F000001%04X%016X%04X", worker&0xffff, n>>16, n&0xffff)
}

func batchBody(body []byte, worker, n, count int) []byte {
	var out bytes.Buffer
	for i := 0; i < count; i++ {
		text := "UNIQ_KEY\x01" + uniqueKey(worker, n*count+i) + "\x02WAIT\x01true\x02"
		var head [20]byte
		binary.BigEndian.PutUint32(head[:], uint32(20+len(body)+2+len(text)))
		binary.BigEndian.PutUint32(head[8:], crc32.ChecksumIEEE(body))
		binary.BigEndian.PutUint32(head[16:], uint32(len(body)))
		out.Write(head[:])
		out.Write(body)
		out.Write([]byte{byte(len(text) >> 8), byte(len(text))})
		out.WriteString(text)
	}
	return out.Bytes()
}

func (c *remotingConn) sendLoop(o options, worker int, count *atomic.Int64, lat *latencies) error {
	body := bytes.Repeat([]byte("x"), o.size)
	code := 310
	if o.batch > 1 {
		code = 320
	}
	started := make([]int64, o.inflight)
	free := make(chan int, o.inflight)
	for i := 0; i < o.inflight; i++ {
		free <- i
	}
	go func() {
		for n := 0; ; n++ {
			slot := <-free
			properties := "UNIQ_KEY\x01" + uniqueKey(worker, n) + "\x02WAIT\x01true\x02"
			message := body
			if o.batch > 1 {
				message = batchBody(body, worker, n, o.batch)
			}
			topic, queue := o.topic, (worker+n)%o.queues
			if o.topics > 1 { // every topic and queue in turn, neighbours far from one another
				turn := (o.from + n*o.conns + worker) * 7919
				topic += strconv.Itoa(turn % o.topics)
				queue = turn / o.topics % o.queues
			}
			h := newHeader(code, sendFields(topic, queue, properties, o.batch > 1))
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
