package main

// Many light clients: who connects and stays, who publishes at a pace, who has filters.
//
//	loadgen storm  -addr H:P,H:P -conns 5000 -workers 256
//	loadgen paced  -addr H:P,H:P -conns 100 -rate 28000 -late H:P
//	loadgen topics -addr H:P -filters 100000 -subs 100 -conns 4 -inflight 256 -first

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// holdS: after the result is known, connections stay so long for the caller to look at the server.
const holdS = 1.0

func addresses(o options) []string { return strings.Split(o.addr, ",") }

// runStorm connects o.conns clients, o.workers at a time, and keeps them.
func runStorm(o options) {
	to := addresses(o)
	clients := make([]*client, o.conns)
	lat := make([]*latencies, o.workers)
	var next atomic.Int64
	var done sync.WaitGroup
	fmt.Println("measuring")
	cpu, t := ownCPU(), time.Now()
	phase.Store(1)
	for w := range lat {
		lat[w] = &latencies{}
		done.Add(1)
		go func(w int) {
			defer done.Done()
			for i := int(next.Add(1)) - 1; i < o.conns; i = int(next.Add(1)) - 1 {
				at := now()
				c, err := connectSized(to[i%len(to)], fmt.Sprintf("%s-%d", o.name, i), 0)
				fail(err)
				lat[w].add(now() - at)
				clients[i] = c
			}
		}(w)
	}
	done.Wait()
	dt := time.Since(t).Seconds()
	cpu = ownCPU() - cpu
	time.Sleep(time.Duration(o.secs * float64(time.Second))) // what a server does behind CONNACK
	fmt.Println("measured")
	report(o.conns, dt, lat, cpu, nil)
	time.Sleep(time.Duration(holdS * float64(time.Second)))
	for _, c := range clients {
		c.conn.Close()
	}
}

func report(count int, dt float64, lat []*latencies, cpu float64, more map[string]any) {
	all := map[string]any{
		"messages": count, "seconds": dt, "rate": float64(count) / dt,
		"latency_us": quantiles(lat), "gen_cpu_pct": cpu / dt * 100,
	}
	for name, value := range more {
		all[name] = value
	}
	line, _ := json.Marshal(all)
	fmt.Println(string(line))
}

// pair is a publisher and its subscriber, each with a connection; QoS 1.
type pair struct {
	in, out        *client
	sent, received atomic.Int64
	lat            latencies
}

const pacedTick = 5 * time.Millisecond

func newPair(o options, number int, from, to string) (*pair, error) {
	name := fmt.Sprintf("%s-%d", o.name, number)
	out, err := connectSized(to, name+"-sub", 64<<10)
	if err != nil {
		return nil, err
	}
	if err = out.subscribe(fmt.Sprintf("%s/%d", o.name, number), 1); err != nil {
		return nil, err
	}
	in, err := connectSized(from, name+"-pub", 64<<10)
	return &pair{in: in, out: out}, err
}

// run publishes rate messages a second in ticks, whatever is acknowledged, until phase 2.
func (p *pair) run(o options, number int, rate float64) {
	topic := text(nil, fmt.Sprintf("%s/%d", o.name, number))
	go func() { // PUBACKs
		for {
			if err := p.in.fill(); err != nil {
				lost(err)
				return
			}
			for _, _, ok := p.in.next(); ok; _, _, ok = p.in.next() {
			}
		}
	}()
	go p.receive()
	body := make([]byte, o.size)
	begin, id := time.Now(), uint16(0)
	time.Sleep(time.Duration(number) * pacedTick / time.Duration(o.conns)) // not all at once
	for phase.Load() < 2 {
		due := int64(time.Since(begin).Seconds() * rate)
		var data []byte
		for ; p.sent.Load() < due; p.sent.Add(1) {
			if id++; id == 0 {
				id = 1
			}
			binary.BigEndian.PutUint64(body, uint64(now()))
			packet := packet(0x32, append(binary.BigEndian.AppendUint16(append([]byte{}, topic...), id), body...))
			data = append(data, packet...)
		}
		if len(data) > 0 {
			if _, err := p.in.conn.Write(data); err != nil {
				lost(err)
				return
			}
		}
		time.Sleep(pacedTick)
	}
}

func (p *pair) receive() {
	for {
		if err := p.out.fill(); err != nil {
			lost(err)
			return
		}
		var acks []byte
		at := now()
		for first, body, ok := p.out.next(); ok; first, body, ok = p.out.next() {
			if first&0xF0 != 0x30 {
				continue
			}
			body = body[2+int(binary.BigEndian.Uint16(body)):]
			acks = append(acks, 0x40, 2, body[0], body[1])
			if phase.Load() == 1 {
				p.lat.add(at - int64(binary.BigEndian.Uint64(body[2:])))
			}
			p.received.Add(1)
		}
		if _, err := p.out.conn.Write(acks); len(acks) > 0 && err != nil {
			lost(err)
			return
		}
	}
}

var lostCount atomic.Int64 // connections that the server ended

func lost(err error) {
	if phase.Load() < 3 {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		lostCount.Add(1)
	}
}

// runPaced sends at o.rate over o.conns pairs. With o.late, a tenth as many more pairs join at the
// same pace as soon as that address accepts connections.
func runPaced(o options) {
	to := addresses(o)
	pairs := make([]*pair, o.conns)
	for i := range pairs {
		var err error
		pairs[i], err = newPair(o, i, to[i%len(to)], to[(i+1)%len(to)])
		fail(err)
	}
	each := o.rate / float64(o.conns)
	for i, p := range pairs {
		go p.run(o, i, each)
	}
	var joined atomic.Int64
	late := make([]*pair, o.conns/10)
	if o.late != "" {
		for i := range late {
			go func(i int) {
				number := o.conns + i
				for phase.Load() < 2 {
					p, err := newPair(o, number, o.late, to[i%len(to)])
					if err == nil {
						late[i] = p
						joined.Add(1)
						p.run(o, number, each)
						return
					}
					var refused *net.OpError
					if !errors.As(err, &refused) || refused.Op != "dial" {
						lost(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			}(i)
		}
	}
	time.Sleep(time.Duration(o.warm * float64(time.Second)))
	fmt.Println("measuring")
	cpu, t := ownCPU(), time.Now()
	before := totals(pairs, late)[1]
	phase.Store(1)
	time.Sleep(time.Duration(o.secs * float64(time.Second)))
	count, dt := totals(pairs, late)[1]-before, time.Since(t).Seconds()
	cpu = ownCPU() - cpu
	phase.Store(2)
	fmt.Println("measured")
	sums := totals(pairs, late)
	for deadline := time.Now().Add(10 * time.Second); sums[0] != sums[1] && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
		sums = totals(pairs, late)
	}
	phase.Store(3)
	var lat []*latencies
	for _, p := range append(pairs, late...) {
		if p != nil {
			lat = append(lat, &p.lat)
		}
	}
	report(int(count), dt, lat, cpu, map[string]any{
		"lost": sums[0] - sums[1], "errors": lostCount.Load(), "joined": joined.Load(),
	})
}

func totals(groups ...[]*pair) (sums [2]int64) {
	for _, pairs := range groups {
		for _, p := range pairs {
			if p != nil {
				sums[0] += p.sent.Load()
				sums[1] += p.received.Load()
			}
		}
	}
	return
}

// runTopics publishes to o.filters topics in turn, each matched by one filter of o.subs clients.
// Without o.first, each has been published to once before measuring begins.
func runTopics(o options) {
	var count atomic.Int64
	var ready sync.WaitGroup
	for s := 0; s < o.subs; s++ {
		ready.Add(1)
		go func(s int) {
			c, err := connectSized(o.addr, fmt.Sprintf("%s-sub-%d", o.name, s), 64<<10)
			fail(err)
			var filters []string
			for i := s; i < o.filters; i += o.subs {
				filters = append(filters, fmt.Sprintf("%s/%d/+", o.name, i))
				if len(filters) == 500 || i+o.subs >= o.filters {
					fail(c.subscribeAll(filters, 0))
					filters = nil
				}
			}
			ready.Done()
			for phase.Load() < 2 {
				if c.fill() != nil {
					return
				}
				c.lo = c.hi
			}
		}(s)
	}
	ready.Wait()
	lat := make([]*latencies, o.conns)
	var round sync.WaitGroup
	for i := range lat {
		lat[i] = &latencies{}
		ready.Add(1)
		round.Add(1)
		go func(i int) {
			c, err := connect(o.addr, fmt.Sprintf("%s-pub-%d", o.name, i))
			fail(err)
			ready.Done()
			fail(c.publishTopics(o, i, &count, lat[i], &round))
		}(i)
	}
	ready.Wait()
	if !o.first {
		round.Wait()
	}
	measure(o, &count, lat)
}

// publishTopics keeps o.inflight QoS 1 publishes unacknowledged, each to the next topic. It has its
// part of the topics; when each of them was acknowledged once, a round is done.
func (c *client) publishTopics(o options, from int, count *atomic.Int64, lat *latencies, round *sync.WaitGroup) error {
	body := make([]byte, o.size)
	part := o.filters / o.conns
	free, id, number, acked := o.inflight, uint16(0), 0, 0
	var sentAt [65536]int64
	for phase.Load() < 2 {
		var out []byte
		at := now()
		for ; free > 0 && !(o.first && acked+o.inflight-free >= part); free-- {
			if id++; id == 0 {
				id = 1
			}
			sentAt[id] = at
			head := text(nil, fmt.Sprintf("%s/%d/t", o.name, from*part+number))
			number = (number + 1) % part
			out = append(out, packet(0x32, append(binary.BigEndian.AppendUint16(head, id), body...))...)
		}
		if _, err := c.conn.Write(out); err != nil {
			return err
		}
		if err := c.fill(); err != nil {
			return err
		}
		at = now()
		for first, body, ok := c.next(); ok; first, body, ok = c.next() {
			if first == 0x40 {
				if phase.Load() == 1 {
					lat.add(at - sentAt[binary.BigEndian.Uint16(body)])
				}
				free++
				count.Add(1)
				if acked++; acked == part {
					round.Done()
					if o.first {
						usedUpOnce.Do(func() { close(usedUp) })
						return nil
					}
				}
			}
		}
	}
	return nil
}
