// Program ENDPOINTS PREFIX: sends, receives and is pushed to; prints what it got.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	config = &rmq.Config{Endpoint: os.Args[1], Credentials: &credentials.SessionCredentials{}}
	prefix = os.Args[2]
	topic  = prefix + "T"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func message(topic string, body string) *rmq.Message {
	made := &rmq.Message{Topic: topic, Body: []byte(body)}
	made.SetTag("t")
	return made
}

func sorted(found map[string]bool) string {
	words := []string{}
	for word := range found {
		words = append(words, word)
	}
	sort.Strings(words)
	return strings.Join(words, ", ")
}

func send() {
	checker := &rmq.TransactionChecker{Check: func(*rmq.MessageView) rmq.TransactionResolution { return rmq.COMMIT }}
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic), rmq.WithTransactionChecker(checker))
	check(err)
	check(producer.Start())
	for i := 0; i < 3; i++ {
		made := message(topic, fmt.Sprintf("m%d", i))
		made.SetKeys(fmt.Sprintf("k%d", i))
		made.AddProperty("p", fmt.Sprintf("v%d", i))
		_, err = producer.Send(context.TODO(), made)
		check(err)
	}
	soon := message(topic, "soon")
	soon.SetDelayTimestamp(time.Now().Add(1500 * time.Millisecond))
	_, err = producer.Send(context.TODO(), soon)
	check(err)
	fifo := message(topic, "fifo")
	fifo.SetMessageGroup("g")
	_, err = producer.Send(context.TODO(), fifo)
	check(err)
	transaction := producer.BeginTransaction()
	_, err = producer.SendWithTransaction(context.TODO(), message(topic, "committed"), transaction)
	check(err)
	check(transaction.Commit())
	check(producer.GracefulStop())
}

func receive(count int) {
	config.ConsumerGroup = prefix + "simple"
	consumer, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(3*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpression("t")}))
	check(err)
	check(consumer.Start())
	found := map[string]bool{} // what comes twice on a busy machine counts once
	for len(found) < count {
		messages, err := consumer.Receive(context.TODO(), 20, 20*time.Second)
		if err != nil {
			fmt.Fprintln(os.Stderr, err) // none yet
			continue
		}
		for _, got := range messages {
			found[strings.TrimSpace(string(got.GetBody())+" "+got.GetProperties()["p"])] = true
			if err := consumer.Ack(context.TODO(), got); err != nil {
				fmt.Fprintln(os.Stderr, err) // too late: it comes again
			}
		}
	}
	check(consumer.GracefulStop())
	fmt.Println("received", sorted(found))
}

func push(count int) {
	var lock sync.Mutex
	found := map[string]bool{}
	isBack, isDone := false, false
	done := make(chan bool)
	consume := func(got *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		body := string(got.GetBody())
		found[body] = true
		isBack = isBack || body == "m0" && got.GetDeliveryAttempt() > 1
		if len(found) == count && isBack && !isDone {
			isDone = true
			close(done)
		}
		if body == "m0" && got.GetDeliveryAttempt() == 1 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	config.ConsumerGroup = prefix + "push"
	consumer, err := rmq.NewPushConsumer(config, rmq.WithPushAwaitDuration(3*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
		rmq.WithPushConsumptionThreadCount(2), rmq.WithPushMaxCacheMessageCount(64))
	check(err)
	check(consumer.Start())
	<-done
	check(consumer.GracefulStop())
	fmt.Println("pushed", sorted(found))
}

func main() {
	rmq.EnableSsl = false
	send()
	receive(6)
	push(6)
}
