package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func traceConfig(o Options) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		Access: primitive.Local, Resolver: o.nameServers(), GroupName: o["group"], TraceTopic: o["traceTopic"],
	}
}

// awaitTraces returns when the trace topic, with one queue, contains `count` records of a kind: the client sends them in the
// background and does not wait for them at its shutdown.
func awaitTraces(o Options, kind string, count int) error {
	reading := Options{"ns": o["ns"], "topic": o["traceTopic"], "group": o["group"] + "-traces"}
	puller, err := startPuller(reading)
	if err != nil {
		return err
	}
	defer puller.Shutdown()
	queue := &primitive.MessageQueue{Topic: o["traceTopic"], BrokerName: "broker-a"}
	for end := time.Now().Add(o.wait()); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		messages, _, err := readQueue(puller, queue)
		if err != nil {
			return err
		}
		found := 0
		for _, one := range messages {
			found += strings.Count(string(one.Body), kind+"\x01")
		}
		if found >= count {
			return nil
		}
	}
	return fmt.Errorf("no %d records %s on the trace topic", count, kind)
}
