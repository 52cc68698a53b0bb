// loadgen: closed-loop MQTT load for the benches; one JSON line a run. Standard library only.
//
//	loadgen pub -addr H:P -conns 4 -inflight 256 -size 256 -qos 1 -secs 3
//	loadgen e2e -addr H:P -pubs 1 -subs 1 -window 512 -size 256 -qos 1 -secs 3
//
// A slow generator hides a fast server: gen_cpu_pct says how busy this process was.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type options struct {
	addr, name, topic                  string
	conns, inflight, size, qos, window int
	filters, workers                   int
	late, kind                         string
	rate                               float64
	batch, queues, topics, from        int
	pubs, subs                         int
	fan, kept, shared, first           bool
	secs, warm                         float64
}

// phase: 0 warming up, 1 measuring, 2 over.
var phase atomic.Int32

// latencies of one worker: a sample of at most sampleMax, in nanoseconds.
const sampleMax = 1 << 16

type latencies struct {
	seen    int
	samples []int64
	ended   []int64 // of the first samples, if noteEnds
}

var noteEnds bool

func (l *latencies) add(ns int64) {
	l.seen++
	if len(l.samples) < sampleMax {
		l.samples = append(l.samples, ns)
		if noteEnds {
			l.ended = append(l.ended, time.Now().UnixMicro())
		}
	} else if i := (l.seen * 2654435761) & (1<<32 - 1) % l.seen; i < sampleMax && !noteEnds {
		l.samples[i] = ns
	}
}

func quantiles(all []*latencies) map[string]float64 {
	var merged []int64
	for _, l := range all {
		merged = append(merged, l.samples...)
	}
	if len(merged) == 0 {
		return nil
	}
	sort.Slice(merged, func(i, j int) bool { return merged[i] < merged[j] })
	at := func(q float64) float64 { return float64(merged[int(q*float64(len(merged)-1))]) / 1e3 }
	return map[string]float64{"p50": at(.5), "p90": at(.9), "p99": at(.99), "max": at(1), "mean": mean(merged)}
}

// each lists the samples with the time of day at which they ended, both in microseconds: turns of
// something else can be told apart afterwards.
func each(all []*latencies) [][2]int64 {
	found := [][2]int64{}
	for _, l := range all {
		for i, ended := range l.ended {
			found = append(found, [2]int64{ended, l.samples[i] / 1e3})
		}
	}
	return found
}

func mean(ns []int64) float64 {
	sum := 0.0
	for _, value := range ns {
		sum += float64(value)
	}
	return sum / float64(len(ns)) / 1e3
}

func ownCPU() float64 {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// usedUp is closed when there is nothing left to send: measuring ends then.
var (
	usedUp     = make(chan struct{})
	usedUpOnce sync.Once
)

// measure lets workers warm up, then counts for o.secs; it writes a line "measuring" and
// "measured" to stdout around it, so that the caller reads the server's counters there.
func measure(o options, count *atomic.Int64, lat []*latencies) {
	time.Sleep(time.Duration(o.warm * float64(time.Second)))
	fmt.Println("measuring")
	cpu, n, t := ownCPU(), count.Load(), time.Now()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt) // enough, tell what there is
	phase.Store(1)
	select {
	case <-time.After(time.Duration(o.secs * float64(time.Second))):
	case <-usedUp:
	case <-interrupted:
	}
	n, dt := count.Load()-n, time.Since(t).Seconds()
	cpu = ownCPU() - cpu
	phase.Store(2)
	fmt.Println("measured")
	result := map[string]any{
		"messages": n, "seconds": dt, "rate": float64(n) / dt,
		"gen_cpu_pct": cpu / dt * 100,
	}
	if noteEnds {
		result["each_us"] = each(lat)
	}
	result["latency_us"] = quantiles(lat)
	line, _ := json.Marshal(result)
	fmt.Println(string(line))
}

func fail(err error) {
	if err != nil && phase.Load() < 2 {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: loadgen pub|e2e|storm|paced|topics|apub|acons|rsend|rpull|rpop [flags]")
		os.Exit(2)
	}
	var o options
	f := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	f.StringVar(&o.addr, "addr", "127.0.0.1:1883", "server")
	f.StringVar(&o.name, "name", "bench", "first topic level and prefix of client ids")
	f.IntVar(&o.conns, "conns", 4, "publisher connections")
	f.IntVar(&o.inflight, "inflight", 256, "unacknowledged publishes per connection")
	f.IntVar(&o.size, "size", 256, "payload bytes")
	f.IntVar(&o.qos, "qos", 1, "QoS, 0 or 1")
	f.IntVar(&o.pubs, "pubs", 1, "e2e: publishers")
	f.IntVar(&o.subs, "subs", 1, "e2e: subscribers")
	f.BoolVar(&o.fan, "fan", false, "e2e: every subscriber gets everything; else pairs")
	f.BoolVar(&o.kept, "kept", false, "e2e: subscribers' sessions are kept")
	f.BoolVar(&o.shared, "shared", false, "e2e: each subscriber is the one member of a share")
	f.IntVar(&o.window, "window", 512, "e2e: messages under way, per publisher")
	f.StringVar(&o.topic, "topic", "bench", "remoting: topic")
	f.IntVar(&o.batch, "batch", 1, "rsend: messages of one request")
	f.IntVar(&o.queues, "queues", 4, "remoting: queues of the topic")
	f.IntVar(&o.filters, "filters", 1000, "topics: how many, each with its filter")
	f.IntVar(&o.workers, "workers", 256, "storm: connects under way at once")
	f.Float64Var(&o.rate, "rate", 28000, "paced: messages a second, all pairs together")
	f.StringVar(&o.late, "late", "", "paced: a server that comes up later, for a tenth more pairs")
	f.IntVar(&o.topics, "topics", 1, "rsend: so many topics <topic>0, <topic>1, …")
	f.IntVar(&o.from, "from", 0, "rsend: where in the round of topics to begin")
	f.StringVar(&o.kind, "kind", "classic", "apub, acons: x-queue-type")
	f.Float64Var(&o.secs, "secs", 3, "seconds measured")
	f.BoolVar(&o.first, "first", false, "topics: publish once to each; else once before measuring, then again and again")
	f.Float64Var(&o.warm, "warm", 1, "seconds before that")
	f.BoolVar(&noteEnds, "each", false, "rsend: tell when each send ended, of the first 65,536")
	f.Parse(os.Args[2:])
	switch os.Args[1] {
	case "pub":
		runPublishers(o)
	case "e2e":
		runEndToEnd(o)
	case "storm":
		runStorm(o)
	case "paced":
		runPaced(o)
	case "topics":
		runTopics(o)
	case "apub":
		runAmqp(o, false)
	case "acons":
		runAmqp(o, true)
	case "rsend":
		runRemoting(o, (*remotingConn).sendLoop)
	case "rpull":
		runRemoting(o, (*remotingConn).pullLoop)
	case "rpop":
		runRemoting(o, (*remotingConn).popLoop)
	default:
		fmt.Fprintln(os.Stderr, "unknown command", os.Args[1])
		os.Exit(2)
	}
}

func runPublishers(o options) {
	var count atomic.Int64
	var ready sync.WaitGroup
	lat := make([]*latencies, o.conns)
	for i := range lat {
		lat[i] = &latencies{}
		ready.Add(1)
		go func(i int) {
			c, err := connect(o.addr, fmt.Sprintf("%s-pub-%d", o.name, i))
			fail(err)
			ready.Done()
			fail(c.publishLoop(o, fmt.Sprintf("%s/%d", o.name, i), &count, lat[i], nil))
		}(i)
	}
	ready.Wait()
	measure(o, &count, lat)
}

func runEndToEnd(o options) {
	var count atomic.Int64
	lat := make([]*latencies, o.subs)
	rooms := make([]*room, o.pubs)
	for i := range rooms {
		rooms[i] = newRoom(o.window)
	}
	var ready sync.WaitGroup
	keepSessions.Store(o.kept)
	for i := range lat {
		lat[i] = &latencies{}
		ready.Add(1)
		go func(i int) {
			c, err := connect(o.addr, fmt.Sprintf("%s-sub-%d", o.name, i))
			fail(err)
			topic := fmt.Sprintf("%s/%d", o.name, i%o.pubs)
			if o.fan {
				topic = o.name + "/+"
			}
			if o.shared {
				topic = "$share/bench/" + topic
			}
			fail(c.subscribe(topic, o.qos))
			ready.Done()
			fail(c.receiveLoop(o, i, &count, lat[i], rooms))
		}(i)
	}
	ready.Wait()
	keepSessions.Store(false)
	for i := range rooms {
		ready.Add(1)
		go func(i int) {
			c, err := connect(o.addr, fmt.Sprintf("%s-pub-%d", o.name, i))
			fail(err)
			ready.Done()
			var unused atomic.Int64
			fail(c.publishLoop(o, fmt.Sprintf("%s/%d", o.name, i), &unused, &latencies{}, rooms[i]))
		}(i)
	}
	ready.Wait()
	measure(o, &count, lat)
}
