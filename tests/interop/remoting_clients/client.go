// rocketmq-client-go v2: NAMESRV TOOLS BROKER, where clients look, where topics are made, and the
// broker that makes them. Prints a line per case: "pass" or "FAIL", its name and why.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var ns string
var tools string

func check(name string, err error) bool {
	if err != nil {
		fmt.Printf("FAIL %s: %v\n", name, err)
		return false
	}
	return true
}

type box struct {
	sync.Mutex
	got []string
}

func (b *box) add(s string) { b.Lock(); b.got = append(b.got, s); b.Unlock() }
func (b *box) list() []string {
	b.Lock()
	defer b.Unlock()
	c := append([]string{}, b.got...)
	return c
}
func (b *box) expect(name string, sorted bool, want ...string) {
	end := time.Now().Add(40 * time.Second)
	for time.Now().Before(end) && len(b.list()) < len(want) {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	got := b.list()
	if sorted {
		sort.Strings(got)
		sort.Strings(want)
	}
	if strings.Join(got, ",") == strings.Join(want, ",") {
		fmt.Println("pass", name)
	} else {
		fmt.Printf("FAIL %s: want %v got %v\n", name, want, got)
	}
}

func topic(name string) string {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{tools})))
	check("admin", err)
	check("create "+name, a.CreateTopic(context.Background(), admin.WithTopicCreate(name), admin.WithBrokerAddrCreate(os.Args[3])))
	a.Close()
	return name
}

func prod(group string) rocketmq.Producer {
	p, err := rocketmq.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver([]string{ns})), producer.WithGroupName(group), producer.WithRetry(2))
	check("producer", err)
	check("producer start", p.Start())
	return p
}

func push(group, topic string, b *box, sel consumer.MessageSelector, f func(*primitive.MessageExt) consumer.ConsumeResult, opts ...consumer.Option) rocketmq.PushConsumer {
	all := append([]consumer.Option{consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{ns})), consumer.WithGroupName(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithInstance(group + strconv.FormatInt(time.Now().UnixNano(), 10))}, opts...)
	c, err := rocketmq.NewPushConsumer(all...)
	check("push", err)
	check("subscribe", c.Subscribe(topic, sel, func(ctx context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range ms {
			if f != nil {
				if r := f(m); r != consumer.ConsumeSuccess {
					return r, nil
				}
			}
			b.add(string(m.Body))
		}
		return consumer.ConsumeSuccess, nil
	}))
	check("push start", c.Start())
	return c
}

type ends struct{ asked *box }

func (e *ends) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch string(m.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}
func (e *ends) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	e.asked.add(string(m.Body))
	return primitive.CommitMessageState
}

func main() {
	rlog.SetLogLevel("fatal")
	ns, tools = os.Args[1], os.Args[2]
	ctx := context.Background()
	p := prod("go-p")
	all := consumer.MessageSelector{}
	var wg sync.WaitGroup
	run := func(f func()) { wg.Add(1); go func() { defer wg.Done(); f() }() }
	run(func() { // sync, async, oneway, batch, tags
		t := topic("go-plain")
		b, tagged, sql := &box{}, &box{}, &box{}
		c := push("go-g1", t, b, all, nil)
		d := push("go-g2", t, tagged, consumer.MessageSelector{Type: consumer.TAG, Expression: "a || b"}, nil)
		e := push("go-g2s", t, sql, consumer.MessageSelector{Type: consumer.SQL92, Expression: "n > 1"}, nil)
		for i, tag := range []string{"a", "b", "c"} {
			m := primitive.NewMessage(t, []byte("sync-"+tag)).WithTag(tag).WithKeys([]string{"k" + tag})
			m.WithProperty("n", strconv.Itoa(i))
			r, err := p.SendSync(ctx, m)
			if check("sync", err) && r.Status != primitive.SendOK {
				fmt.Println("FAIL status", r)
			}
		}
		done := make(chan error, 1)
		check("async", p.SendAsync(ctx, func(ctx context.Context, r *primitive.SendResult, e error) { done <- e }, primitive.NewMessage(t, []byte("async"))))
		check("async answer", <-done)
		check("oneway", p.SendOneWay(ctx, primitive.NewMessage(t, []byte("oneway"))))
		_, err := p.SendSync(ctx, primitive.NewMessage(t, []byte("b1")), primitive.NewMessage(t, []byte("b2")))
		check("batch", err)
		_, err = p.SendSync(ctx, primitive.NewMessage(t, []byte(strings.Repeat("x", 100000))))
		check("big", err)
		b.expect("plain", true, "sync-a", "sync-b", "sync-c", "async", "oneway", "b1", "b2", strings.Repeat("x", 100000))
		tagged.expect("tags", true, "sync-a", "sync-b")
		sql.expect("sql", true, "sync-c")
		c.Shutdown()
		d.Shutdown()
		e.Shutdown()
	})
	run(func() { // delay
		t := topic("go-delay")
		b := &box{}
		c := push("go-g3", t, b, all, nil)
		start := time.Now()
		_, err := p.SendSync(ctx, primitive.NewMessage(t, []byte("later")).WithDelayTimeLevel(2))
		check("delay", err)
		b.expect("delay", true, "later")
		if time.Since(start) < 5*time.Second {
			fmt.Println("FAIL delay: too early", time.Since(start))
		}
		c.Shutdown()
	})
	run(func() { // retry and dead letter
		t := topic("go-retry")
		b, tries := &box{}, &box{}
		c := push("go-g4", t, b, all, func(m *primitive.MessageExt) consumer.ConsumeResult {
			tries.add(fmt.Sprint(m.ReconsumeTimes))
			if m.ReconsumeTimes < 1 {
				return consumer.ConsumeRetryLater
			}
			return consumer.ConsumeSuccess
		})
		_, err := p.SendSync(ctx, primitive.NewMessage(t, []byte("again")))
		check("retry", err)
		b.expect("retry", true, "again")
		tries.expect("retry tries", false, "0", "1")
		c.Shutdown()
		t2 := topic("go-dead")
		b2 := &box{}
		c2 := push("go-g5", t2, b2, all, func(m *primitive.MessageExt) consumer.ConsumeResult { return consumer.ConsumeRetryLater }, consumer.WithMaxReconsumeTimes(0))
		_, err = p.SendSync(ctx, primitive.NewMessage(t2, []byte("dead")))
		check("dead", err)
		b3 := &box{}
		time.Sleep(5 * time.Second)
		c3 := push("go-g6", "%DLQ%go-g5", b3, all, nil)
		b3.expect("dead letter", true, "dead")
		c2.Shutdown()
		c3.Shutdown()
	})
	run(func() { // orderly
		t := topic("go-order")
		q, err := rocketmq.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver([]string{ns})), producer.WithGroupName("go-po"), producer.WithInstanceName("go-po"), producer.WithQueueSelector(producer.NewHashQueueSelector()))
		check("producer", err)
		check("start", q.Start())
		b := &box{}
		c := push("go-g7", t, b, all, nil, consumer.WithConsumerOrder(true))
		var want []string
		for i := 0; i < 8; i++ {
			s := fmt.Sprintf("o%d", i)
			want = append(want, s)
			_, err := q.SendSync(ctx, primitive.NewMessage(t, []byte(s)).WithShardingKey("one"))
			check("orderly", err)
		}
		b.expect("orderly", false, want...)
		c.Shutdown()
		q.Shutdown()
	})
	run(func() { // transactions
		t := topic("go-tx")
		e := &ends{&box{}}
		b := &box{}
		c := push("go-g8", t, b, all, nil)
		q, err := rocketmq.NewTransactionProducer(e, producer.WithNsResolver(primitive.NewPassthroughResolver([]string{ns})), producer.WithGroupName("go-pt"), producer.WithInstanceName("go-pt"))
		check("tx producer", err)
		check("tx start", q.Start())
		for _, s := range []string{"commit", "rollback", "unknown"} {
			_, err := q.SendMessageInTransaction(ctx, primitive.NewMessage(t, []byte(s)))
			check("tx", err)
		}
		b.expect("transaction", true, "commit", "unknown")
		e.asked.expect("transaction check", true, "unknown")
		c.Shutdown()
		q.Shutdown()
	})
	run(func() { // broadcast
		t := topic("go-broad")
		b, d := &box{}, &box{}
		c := push("go-g9", t, b, all, nil, consumer.WithConsumerModel(consumer.BroadCasting))
		e := push("go-g9", t, d, all, nil, consumer.WithConsumerModel(consumer.BroadCasting))
		time.Sleep(time.Second)
		_, err := p.SendSync(ctx, primitive.NewMessage(t, []byte("all")))
		check("broadcast", err)
		b.expect("broadcast 1", true, "all")
		d.expect("broadcast 2", true, "all")
		c.Shutdown()
		e.Shutdown()
	})
	run(func() { // pull
		t := topic("go-pull")
		for i := 0; i < 6; i++ {
			_, err := p.SendSync(ctx, primitive.NewMessage(t, []byte(fmt.Sprint("p", i))))
			check("pull send", err)
		}
		c, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{ns})), consumer.WithGroupName("go-g10"), consumer.WithInstance("go-g10"), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
		check("pull", err)
		check("pull subscribe", c.Subscribe(t, all))
		check("pull start", c.Start())
		b := &box{}
		end := time.Now().Add(20 * time.Second)
		for time.Now().Before(end) && len(b.list()) < 6 {
			cctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			cr, err := c.Poll(cctx, 2*time.Second)
			cancel()
			if consumer.IsNoNewMsgError(err) || err != nil {
				continue
			}
			for _, m := range cr.GetMsgList() {
				b.add(string(m.Body))
			}
			c.ACK(ctx, cr, consumer.ConsumeSuccess)
		}
		b.expect("pull", true, "p0", "p1", "p2", "p3", "p4", "p5")
		c.Shutdown()
	})
	wg.Wait()
	p.Shutdown()
	fmt.Println("end")
}
