package main

import (
	"encoding/base64"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// message is what a request says of one; its body is Text, or base64 in Bytes.
type message struct {
	Text       string            `json:"text"`
	Bytes      string            `json:"bytes"`
	Tag        string            `json:"tag"`
	Keys       string            `json:"keys"`
	DelayLevel int               `json:"delayLevel"`
	Properties map[string]string `json:"properties"`
}

func messagesOf(args arguments) ([]*primitive.Message, error) {
	made := make([]*primitive.Message, 0, len(args.Messages))
	for _, one := range args.Messages {
		body := []byte(one.Text)
		if one.Bytes != "" {
			decoded, err := base64.StdEncoding.DecodeString(one.Bytes)
			if err != nil {
				return nil, err
			}
			body = decoded
		}
		message := primitive.NewMessage(args.Topic, body)
		for key, value := range one.Properties {
			message.WithProperty(key, value)
		}
		if one.Tag != "" {
			message.WithTag(one.Tag)
		}
		if one.Keys != "" {
			message.WithKeys(strings.Fields(one.Keys))
		}
		if one.DelayLevel != 0 {
			message.WithDelayTimeLevel(one.DelayLevel)
		}
		if args.OrderKey != "" {
			message.WithShardingKey(args.OrderKey)
		}
		made = append(made, message)
	}
	return made, nil
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func receiptOf(result *primitive.SendResult) map[string]any {
	return map[string]any{
		"status":   statuses[result.Status],
		"id":       result.MsgID,
		"offsetId": result.OffsetMsgID,
		"broker":   result.MessageQueue.BrokerName,
		"queue":    result.MessageQueue.QueueId,
		"offset":   result.QueueOffset,
	}
}

func asJSON(message *primitive.MessageExt) map[string]any {
	broker := ""
	queue := 0
	if message.Queue != nil {
		broker, queue = message.Queue.BrokerName, message.Queue.QueueId
	}
	return map[string]any{
		"topic":      message.Topic,
		"id":         message.MsgId,
		"broker":     broker,
		"queue":      queue,
		"offset":     message.QueueOffset,
		"tag":        message.GetTags(),
		"keys":       message.GetKeys(),
		"attempt":    message.ReconsumeTimes,
		"properties": message.GetProperties(),
		"bytes":      base64.StdEncoding.EncodeToString(message.Body),
	}
}

// inbox is what a consumer has received, in order of arrival, kept until asked for.
type inbox struct {
	lock     sync.Mutex
	arrived  *sync.Cond
	messages []map[string]any
}

func newInbox() *inbox {
	box := &inbox{}
	box.arrived = sync.NewCond(&box.lock)
	return box
}

func (box *inbox) put(message *primitive.MessageExt) {
	box.lock.Lock()
	defer box.lock.Unlock()
	box.messages = append(box.messages, asJSON(message))
	box.arrived.Broadcast()
}

// take answers everything that has come, as soon as it is `count` messages or the time is up; it leaves the inbox empty.
func (box *inbox) take(count int, timeout time.Duration) []map[string]any {
	isLate := false
	timer := time.AfterFunc(timeout, func() {
		box.lock.Lock()
		defer box.lock.Unlock()
		isLate = true
		box.arrived.Broadcast()
	})
	defer timer.Stop()
	box.lock.Lock()
	defer box.lock.Unlock()
	for len(box.messages) < count && !isLate {
		box.arrived.Wait()
	}
	taken := box.messages
	box.messages = nil
	if taken == nil {
		taken = []map[string]any{}
	}
	return taken
}
