package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// producerOptions are what all our producers share; trace=1 records every send on the trace topic.
func producerOptions(o Options, more ...producer.Option) []producer.Option {
	options := []producer.Option{
		producer.WithGroupName(o.text("group", "go-producers")),
		producer.WithInstanceName(instance("producer")),
		producer.WithNsResolver(o.nameServers()),
		producer.WithSendMsgTimeout(5 * time.Second),
		producer.WithRetry(2),
	}
	if o.text("accessKey", "") != "" {
		options = append(options, producer.WithCredentials(o.credentials()))
	}
	if o.number("trace", 0) == 1 {
		options = append(options, producer.WithTrace(traceConfig(o)))
	}
	return append(options, more...)
}

func message(o Options, number int) *primitive.Message {
	body := fmt.Sprintf("%s %d", o.text("body", "message"), number)
	if missing := o.number("bodyBytes", 0) - len(body); missing > 0 {
		body += strings.Repeat("x", missing)
	}
	made := primitive.NewMessage(o["topic"], []byte(body))
	made.WithTag(o.text("tags", "TagA")).WithKeys([]string{fmt.Sprintf("key-%d", number)})
	made.WithProperty("number", strconv.Itoa(number))
	made.WithProperty("sender", "jäva")
	if level := o.number("delayLevel", 0); level > 0 {
		made.WithDelayTimeLevel(level)
	}
	return made
}

// send supports mode=sync|async|oneway|batch|ordered; ordered puts message n into queue n mod 2.
func send(o Options) error {
	mode := o.text("mode", "sync")
	var more []producer.Option
	if mode == "ordered" {
		more = append(more, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	}
	sender, err := rocketmq.NewProducer(producerOptions(o, more...)...)
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	messages := make([]*primitive.Message, o.number("count", 10))
	for number := range messages {
		messages[number] = message(o, number)
	}
	if mode == "async" {
		return sendAsync(o, sender, messages)
	}
	if mode == "batch" {
		result, err := sender.SendSync(context.Background(), messages...)
		if err == nil {
			reportSent(len(messages), result)
		}
		return err
	}
	for number, one := range messages {
		if mode == "oneway" && number == len(messages)-1 {
			// The client marks no request as one-way and closes with responses unread, which discards what is still in its
			// send buffer; the response to a last message proves that the others were sent.
			mode = "sync"
		}
		if err := sendOne(sender, mode, number, one); err != nil {
			return fmt.Errorf("message %d: %w", number, err)
		}
	}
	if o.number("trace", 0) == 1 {
		return awaitTraces(o, "Pub", len(messages))
	}
	return nil
}

func sendOne(sender rocketmq.Producer, mode string, number int, one *primitive.Message) error {
	switch mode {
	case "oneway":
		return sender.SendOneWay(context.Background(), one)
	case "ordered":
		one.Queue = &primitive.MessageQueue{Topic: one.Topic, BrokerName: "broker-a", QueueId: number % 2}
	case "sync":
	default:
		return fmt.Errorf("unknown mode %q", mode)
	}
	result, err := sender.SendSync(context.Background(), one)
	if err == nil {
		reportSent(number, result)
	}
	return err
}

func sendAsync(o Options, sender rocketmq.Producer, messages []*primitive.Message) error {
	var left sync.WaitGroup
	left.Add(len(messages))
	for number, one := range messages {
		number := number
		err := sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err != nil {
				report(Fact{"failed": number, "error": err.Error()})
			} else {
				reportSent(number, result)
			}
			left.Done()
		}, one)
		if err != nil {
			return fmt.Errorf("message %d: %w", number, err)
		}
	}
	answered := make(chan struct{})
	go func() {
		left.Wait()
		close(answered)
	}()
	select {
	case <-answered:
		return nil
	case <-time.After(o.wait()):
		return fmt.Errorf("asynchronous sends were never answered")
	}
}
