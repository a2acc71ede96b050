package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Fact is one result.
type Fact map[string]interface{}

var (
	printing sync.Mutex
	statuses = map[primitive.SendStatus]string{
		primitive.SendOK:                "SEND_OK",
		primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
		primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
		primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
		primitive.SendUnknownError:      "UNKNOWN",
	}
)

func report(fact Fact) {
	line, err := json.Marshal(fact)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Fprintf(os.Stdout, "RESULT %s\n", line)
}

func reportSent(number int, result *primitive.SendResult) {
	report(Fact{
		"sent": number, "status": statuses[result.Status], "msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID,
		"broker": result.MessageQueue.BrokerName, "queue": result.MessageQueue.QueueId, "offset": result.QueueOffset,
		"region": result.RegionID,
	})
}

func reportReceived(how string, message *primitive.MessageExt) {
	body := string(message.Body)
	if len(body) > 64 {
		body = body[:64]
	}
	report(Fact{
		"received": how, "topic": message.Topic, "msgId": message.MsgId, "queue": message.Queue.QueueId,
		"offset": message.QueueOffset, "tags": message.GetTags(), "keys": message.GetKeys(), "body": body,
		"bodyBytes": len(message.Body), "reconsumeTimes": message.ReconsumeTimes, "bornHost": message.BornHost,
		"storeTimestamp": message.StoreTimestamp, "bornTimestamp": message.BornTimestamp,
		"properties": message.GetProperties(),
	})
}
