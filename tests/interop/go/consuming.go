package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// tally waits until `count` distinct deliveries were counted.
type tally struct {
	mutex    sync.Mutex
	seen     map[string]bool
	count    int
	complete chan struct{}
}

func newTally(count int) *tally {
	made := &tally{seen: map[string]bool{}, count: count, complete: make(chan struct{})}
	if count == 0 {
		close(made.complete)
	}
	return made
}

func (t *tally) add(key string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.seen[key] {
		return
	}
	t.seen[key] = true
	if len(t.seen) == t.count {
		close(t.complete)
	}
}

func (t *tally) wait(limit time.Duration) error {
	select {
	case <-t.complete:
		return nil
	case <-time.After(limit):
		t.mutex.Lock()
		defer t.mutex.Unlock()
		return fmt.Errorf("%d of %d deliveries came", len(t.seen), t.count)
	}
}

func consumerOptions(o Options, member string) []consumer.Option {
	options := []consumer.Option{
		consumer.WithGroupName(o["group"]),
		consumer.WithInstance(instance(member)),
		consumer.WithNsResolver(o.nameServers()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithMaxReconsumeTimes(int32(o.number("maxReconsume", 16))),
		consumer.WithConsumerOrder(o.number("ordered", 0) == 1),
		consumer.WithConsumeMessageBatchMaxSize(o.number("batch", 1)),
	}
	if o.text("model", "clustering") == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if o.text("accessKey", "") != "" {
		options = append(options, consumer.WithCredentials(o.credentials()))
	}
	if o.number("trace", 0) == 1 {
		options = append(options, consumer.WithTrace(traceConfig(o)))
	}
	return options
}

func selector(o Options) consumer.MessageSelector {
	if sql := o.text("sql", ""); sql != "" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: o.text("expression", "*")}
}

// consume starts `members` push consumers and ends when `count` distinct messages were consumed (by each member in a
// broadcast), of those whose body begins with `only`. The first `fail` deliveries of each message are answered "later". With warm=1 a member is
// started and stopped first: it creates the retry topic, whose route the client reads at start and then only every 30 s.
func consume(o Options) error {
	if o.number("warm", 0) == 1 {
		member, err := startMember(o, "warm", newTally(0))
		if err != nil {
			return err
		}
		if err := member.Shutdown(); err != nil {
			return err
		}
	}
	members := o.number("members", 1)
	wanted := o.number("count", 10)
	if o.text("model", "") == "broadcast" {
		wanted *= members
	}
	counted := newTally(wanted)
	for number := 0; number < members; number++ {
		member, err := startMember(o, fmt.Sprintf("member-%d", number), counted)
		if err != nil {
			return err
		}
		defer member.Shutdown()
	}
	if err := counted.wait(o.wait()); err != nil {
		return err
	}
	if o.number("trace", 0) == 1 {
		return awaitTraces(o, "SubAfter", wanted)
	}
	if o.number("dead", 0) == 1 {
		return awaitDead(o, wanted/(1+o.number("maxReconsume", 16)))
	}
	return nil
}

func startMember(o Options, name string, counted *tally) (rocketmq.PushConsumer, error) {
	member, err := rocketmq.NewPushConsumer(consumerOptions(o, name)...)
	if err != nil {
		return nil, err
	}
	failures := int32(o.number("fail", 0))
	broadcast := o.text("model", "") == "broadcast"
	handle := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if name == "warm" {
			return later(ctx), nil
		}
		for _, one := range messages {
			reportReceived(name, one)
		}
		if messages[0].ReconsumeTimes < failures {
			return later(ctx), nil
		}
		for _, one := range messages {
			if !strings.HasPrefix(string(one.Body), o.text("only", "")) {
				continue
			}
			key := one.MsgId
			if broadcast {
				key += name
			}
			counted.add(key)
		}
		return consumer.ConsumeSuccess, nil
	}
	if o.number("dead", 0) == 1 {
		handle = failing(name, counted)
	}
	if err := member.Subscribe(o["topic"], selector(o), handle); err != nil {
		return nil, err
	}
	return member, member.Start()
}

// failing counts every delivery and acknowledges none: the message becomes a dead letter.
func failing(name string, counted *tally) func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	return func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			reportReceived(name, one)
			counted.add(fmt.Sprintf("%s at %d", one.MsgId, one.ReconsumeTimes))
		}
		return later(ctx), nil
	}
}

// awaitDead returns when `count` messages are in the dead-letter queue, and reports them: at shutdown the consumer does not
// wait for messages that it sends back.
func awaitDead(o Options, count int) error {
	topic := "%DLQ%" + o["group"]
	var messages []*primitive.MessageExt
	for end := time.Now().Add(o.wait()); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		puller, err := startPuller(Options{"ns": o["ns"], "topic": topic, "group": o["group"] + "-dead"})
		if err != nil {
			continue // the topic does not exist yet
		}
		messages, _, err = readQueue(puller, &primitive.MessageQueue{Topic: topic, BrokerName: "broker-a"})
		puller.Shutdown()
		if err == nil && len(messages) >= count {
			break
		}
	}
	for _, one := range messages {
		reportReceived("dead", one)
	}
	return nil
}

// later requests redelivery of the message after the first delay level, 1 s; for an ordered queue after 100 ms.
func later(ctx context.Context) consumer.ConsumeResult {
	if ordered, is := primitive.GetOrderlyCtx(ctx); is {
		ordered.SuspendCurrentQueueTimeMillis = 100
		return consumer.SuspendCurrentQueueAMoment
	}
	if concurrent, is := primitive.GetConcurrentlyCtx(ctx); is {
		concurrent.DelayLevelWhenNextConsume = 1
	}
	return consumer.ConsumeRetryLater
}
