package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// The library's three seconds pass quickly on a machine where every core has other work too.
const patience = 20 * time.Second

func producerOptions(args arguments) []producer.Option {
	chosen := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{args.NameServer})),
		producer.WithGroupName(args.Group),
		producer.WithInstanceName(instance(args)),
		producer.WithSendMsgTimeout(patience),
		producer.WithQueueSelector(producer.NewHashQueueSelector()), // by sharding key; any queue without one
	}
	if args.AccessKey != "" {
		chosen = append(chosen, producer.WithCredentials(credentials(args)))
	}
	if args.Options.Namespace != "" {
		chosen = append(chosen, producer.WithNamespace(args.Options.Namespace))
	}
	if args.Trace {
		chosen = append(chosen, producer.WithTrace(tracing(args)))
	}
	return chosen
}

// instance keeps what is opened apart: things of one instance share a client, which tells the broker of a new one every 30 s.
func instance(args arguments) string {
	return fmt.Sprintf("%d-%s", os.Getpid(), args.Name)
}

func credentials(args arguments) primitive.Credentials {
	return primitive.Credentials{AccessKey: args.AccessKey, SecretKey: args.SecretKey}
}

func tracing(args arguments) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		Access:   primitive.Local,
		Resolver: primitive.NewPassthroughResolver([]string{args.NameServer}),
	}
}

func openProducer(s *session, args arguments) (any, error) {
	made, err := rocketmq.NewProducer(producerOptions(args)...)
	return start(s, args.Name, made, err)
}

// sending answers what args.Name sends with, and the messages to send.
func sending[T any](s *session, args arguments) (T, []*primitive.Message, error) {
	sender, err := get[T](s, args.Name)
	if err != nil {
		return sender, nil, err
	}
	messages, err := messagesOf(args)
	return sender, messages, err
}

// send answers one receipt, or {"error": ...}, per message; none for one-way sends, one for a batch.
func send(s *session, args arguments) (any, error) {
	sender, messages, err := sending[rocketmq.Producer](s, args)
	if err != nil {
		return nil, err
	}
	receipts := []map[string]any{}
	switch args.Mode {
	case "sync":
		for _, message := range messages {
			receipts = append(receipts, receiptOrError(sender.SendSync(context.Background(), message)))
		}
	case "batch":
		receipts = append(receipts, receiptOrError(sender.SendSync(context.Background(), messages...)))
	case "oneway":
		for _, message := range messages {
			if err := sender.SendOneWay(context.Background(), message); err != nil {
				return nil, err
			}
		}
	case "async":
		return sendAsync(sender, messages)
	default:
		return nil, fmt.Errorf("unknown mode %q", args.Mode)
	}
	return receipts, nil
}

func sendAsync(sender rocketmq.Producer, messages []*primitive.Message) (any, error) {
	arriving := make(chan map[string]any, len(messages))
	for _, message := range messages {
		whenDone := func(_ context.Context, result *primitive.SendResult, err error) {
			arriving <- receiptOrError(result, err)
		}
		if err := sender.SendAsync(context.Background(), whenDone, message); err != nil {
			return nil, err
		}
	}
	receipts := []map[string]any{}
	for range messages {
		select {
		case receipt := <-arriving:
			receipts = append(receipts, receipt)
		case <-time.After(patience):
			return nil, fmt.Errorf("%d of %d callbacks came", len(receipts), len(messages))
		}
	}
	return receipts, nil
}

func receiptOrError(result *primitive.SendResult, err error) map[string]any {
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return receiptOf(result)
}

// asWritten decides as the message's own properties "local" and "check" say: a name of Java's LocalTransactionState.
type asWritten struct{}

var decisions = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

func (asWritten) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return decisions[message.GetProperty("local")]
}

func (asWritten) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	return decisions[message.GetProperty("check")]
}

func openTransactionProducer(s *session, args arguments) (any, error) {
	made, err := rocketmq.NewTransactionProducer(asWritten{}, producerOptions(args)...)
	return start(s, args.Name, made, err)
}

func sendInTransaction(s *session, args arguments) (any, error) {
	sender, messages, err := sending[rocketmq.TransactionProducer](s, args)
	if err != nil {
		return nil, err
	}
	receipts := []map[string]any{}
	for _, message := range messages {
		result, err := sender.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, receiptOf(result.SendResult))
	}
	return receipts, nil
}

// request asks with each message and answers the texts of the replies.
func request(s *session, args arguments) (any, error) {
	asker, messages, err := sending[rocketmq.Producer](s, args)
	if err != nil {
		return nil, err
	}
	replies := []string{}
	for _, message := range messages {
		reply, err := asker.Request(context.Background(), time.Duration(args.TimeoutMillis)*time.Millisecond, message)
		if err != nil {
			return nil, err
		}
		replies = append(replies, string(reply.Body))
	}
	return replies, nil
}
