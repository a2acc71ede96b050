package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// request sends `count` requests; a consumer in this process replies to each through the broker.
func request(o Options) error {
	answering, err := startAnswering(o)
	if err != nil {
		return err
	}
	defer answering()
	asker, err := rocketmq.NewProducer(producerOptions(o)...)
	if err != nil {
		return err
	}
	if err := asker.Start(); err != nil {
		return err
	}
	defer asker.Shutdown()
	for number := 0; number < o.number("count", 2); number++ {
		answer, err := asker.Request(context.Background(), 15*time.Second, message(o, number))
		if err != nil {
			return fmt.Errorf("request %d: %w", number, err)
		}
		report(Fact{"answer": string(answer.Body), "to": number, "properties": answer.GetProperties()})
	}
	return nil
}

func startAnswering(o Options) (func(), error) {
	sender, err := rocketmq.NewProducer(producerOptions(Options{"ns": o["ns"], "group": o["group"] + "-answers"})...)
	if err != nil {
		return nil, err
	}
	if err := sender.Start(); err != nil {
		return nil, err
	}
	member, err := rocketmq.NewPushConsumer(consumerOptions(o, "answers")...)
	if err != nil {
		return nil, err
	}
	err = member.Subscribe(o["topic"], selector(o),
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, one := range messages {
				if consumer.GetReplyToClient(one) == "" {
					continue // the message that created the topic
				}
				if err := reply(sender, one); err != nil {
					report(Fact{"failed": "reply", "error": err.Error()})
				}
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return nil, err
	}
	if err := member.Start(); err != nil {
		return nil, err
	}
	return func() {
		member.Shutdown()
		sender.Shutdown()
	}, nil
}

func reply(sender rocketmq.Producer, to *primitive.MessageExt) error {
	answer, err := consumer.CreateReplyMessage(to, nil)
	if err != nil {
		return err
	}
	answer.Body = []byte("answer to " + string(to.Body)) // the client's own function omits the body
	// The requester's heartbeat, which registers its connection with the broker, may arrive after its request.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err = sender.SendSync(context.Background(), answer)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
