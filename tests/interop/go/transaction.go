package main

import (
	"context"
	"strconv"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// decisions: of three messages the first is committed, the second rolled back, the third left undecided until the broker checks.
type decisions struct {
	asked *tally
}

func (d decisions) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	number, _ := strconv.Atoi(one.GetProperty("number"))
	return []primitive.LocalTransactionState{
		primitive.CommitMessageState, primitive.RollbackMessageState, primitive.UnknowState,
	}[number%3]
}

func (d decisions) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	reportReceived("check", one)
	d.asked.add(one.GetProperty("number"))
	if one.GetProperty("number") == "2" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

// transaction sends `count` messages and waits until the broker has checked each undecided one and delivers what was committed. The
// client answers a check after its callback, one-way: a producer that stopped at once would often not have sent the answer.
func transaction(o Options) error {
	count := o.number("count", 6)
	asked := newTally(count / 3)
	sender, err := rocketmq.NewTransactionProducer(decisions{asked}, producerOptions(o)...)
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	for number := 0; number < count; number++ {
		result, err := sender.SendMessageInTransaction(context.Background(), message(o, number))
		if err != nil {
			return err
		}
		report(Fact{"transaction": number, "status": statuses[result.Status], "state": int(result.State)})
	}
	if err := asked.wait(o.wait()); err != nil {
		return err
	}
	readers := Options{"group": o["group"] + "-readers"}
	for key, value := range o {
		if key != "group" {
			readers[key] = value
		}
	}
	committed := newTally(count/3 + 1)
	member, err := startMember(readers, "committed", committed)
	if err != nil {
		return err
	}
	defer member.Shutdown()
	return committed.wait(o.wait())
}
