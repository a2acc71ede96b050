package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var pullStatuses = map[primitive.PullStatus]string{
	primitive.PullFound: "FOUND", primitive.PullNoNewMsg: "NO_NEW_MSG", primitive.PullNoMsgMatched: "NO_MATCHED_MSG",
	primitive.PullOffsetIllegal: "OFFSET_ILLEGAL", primitive.PullBrokerTimeout: "BROKER_TIMEOUT",
}

func startPuller(o Options) (rocketmq.PullConsumer, error) {
	puller, err := rocketmq.NewPullConsumer(consumerOptions(o, "puller")...)
	if err != nil {
		return nil, err
	}
	if err := puller.Subscribe(o["topic"], selector(o)); err != nil {
		return nil, err
	}
	return puller, puller.Start()
}

// beyondTheEnd is an offset above every queue of the tests: a pull there is answered at once, one at the end is parked.
const beyondTheEnd = 1_000_000

// pull pulls each of the queues 0 to `queues`-1 beyond its end, which returns the bounds, then reads it from the beginning.
func pull(o Options) error {
	puller, err := startPuller(o)
	if err != nil {
		return err
	}
	defer puller.Shutdown()
	for number := 0; number < o.number("queues", 4); number++ {
		queue := &primitive.MessageQueue{Topic: o["topic"], BrokerName: "broker-a", QueueId: number}
		if err := pullQueue(puller, queue); err != nil {
			return fmt.Errorf("queue %d: %w", number, err)
		}
	}
	return puller.PersistOffset(context.Background(), o["topic"])
}

func pullQueue(puller rocketmq.PullConsumer, queue *primitive.MessageQueue) error {
	messages, beyond, err := readQueue(puller, queue)
	if err != nil {
		return err
	}
	for _, one := range messages {
		reportReceived("pull", one)
	}
	report(Fact{
		"queue": queue.QueueId, "min": beyond.MinOffset, "max": beyond.MaxOffset,
		"beyond": pullStatuses[beyond.Status], "beyondNext": beyond.NextBeginOffset,
	})
	return puller.UpdateOffset(queue, beyond.MaxOffset)
}

// readQueue returns all messages of a queue and the response to a pull beyond its end.
func readQueue(puller rocketmq.PullConsumer, queue *primitive.MessageQueue) (
	[]*primitive.MessageExt, *primitive.PullResult, error) {
	beyond, err := puller.PullFrom(context.Background(), queue, beyondTheEnd, 3)
	if err != nil {
		return nil, nil, err
	}
	var messages []*primitive.MessageExt
	for at := beyond.MinOffset; at < beyond.MaxOffset; {
		result, err := puller.PullFrom(context.Background(), queue, at, 3)
		if err != nil {
			return nil, nil, err
		}
		messages = append(messages, result.GetMessageExts()...)
		at = result.NextBeginOffset
	}
	return messages, beyond, nil
}

// poll takes messages that the client pulled in the background and acknowledges them, until `count` were received.
func poll(o Options) error {
	puller, err := startPuller(o)
	if err != nil {
		return err
	}
	defer puller.Shutdown()
	end := time.Now().Add(o.wait())
	for left := o.number("count", 10); left > 0; {
		taken, err := puller.Poll(context.Background(), time.Second)
		if err != nil && !consumer.IsNoNewMsgError(err) {
			return err
		}
		if err == nil {
			for _, one := range taken.GetMsgList() {
				reportReceived("poll", one)
			}
			left -= len(taken.GetMsgList())
			puller.ACK(context.Background(), taken, consumer.ConsumeSuccess)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d messages never came", left)
		}
	}
	return nil
}
