package main

import (
	"context"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func consumerOptions(args arguments) []consumer.Option {
	chosen := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{args.NameServer})),
		consumer.WithGroupName(args.Group),
		consumer.WithInstance(instance(args)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(args.Orderly),
	}
	if args.Broadcasting {
		chosen = append(chosen, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if args.Options.MaxReconsumeTimes != nil {
		chosen = append(chosen, consumer.WithMaxReconsumeTimes(*args.Options.MaxReconsumeTimes))
	}
	if args.AccessKey != "" {
		chosen = append(chosen, consumer.WithCredentials(credentials(args)))
	}
	if args.Options.Namespace != "" {
		chosen = append(chosen, consumer.WithNamespace(args.Options.Namespace))
	}
	if args.Trace {
		chosen = append(chosen, consumer.WithTrace(tracing(args)))
	}
	return chosen
}

func selector(args arguments) consumer.MessageSelector {
	if args.SQL != "" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: args.SQL}
	}
	if args.Tags == "" {
		return consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: args.Tags}
}

type pushConsumer struct {
	rocketmq.PushConsumer
	inbox *inbox
}

// openPushConsumer starts one that fails the first args.FailFirst attempts of each message; all attempts are in its inbox.
func openPushConsumer(s *session, args arguments) (any, error) {
	return startPushConsumer(s, args, func(message *primitive.MessageExt) (consumer.ConsumeResult, error) {
		switch {
		case message.ReconsumeTimes >= args.FailFirst:
			return consumer.ConsumeSuccess, nil
		case args.Orderly:
			return consumer.SuspendCurrentQueueAMoment, nil
		default:
			return consumer.ConsumeRetryLater, nil
		}
	})
}

// openResponder answers every message of a topic with its own text behind "re: ".
func openResponder(s *session, args arguments) (any, error) {
	replies := args
	replies.Name, replies.Group = args.Name+" replies", args.Group+"_replies"
	if _, err := openProducer(s, replies); err != nil {
		return nil, err
	}
	sender, err := get[rocketmq.Producer](s, replies.Name)
	if err != nil {
		return nil, err
	}
	return startPushConsumer(s, args, func(message *primitive.MessageExt) (consumer.ConsumeResult, error) {
		reply, err := consumer.CreateReplyMessage(message, nil)
		if err == nil {
			reply.Body = append([]byte("re: "), message.Body...) // 2.1.2 takes a body and forgets it
			_, err = sender.SendSync(context.Background(), reply)
		}
		if err != nil {
			return consumer.ConsumeRetryLater, err
		}
		return consumer.ConsumeSuccess, nil
	})
}

func startPushConsumer(
	s *session, args arguments, handle func(*primitive.MessageExt) (consumer.ConsumeResult, error),
) (any, error) {
	opened, err := rocketmq.NewPushConsumer(consumerOptions(args)...)
	if err != nil {
		return nil, err
	}
	box := newInbox()
	handleAll := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		verdict := consumer.ConsumeSuccess
		for _, message := range messages {
			box.put(message)
			one, err := handle(message)
			if err != nil {
				return one, err
			}
			if one != consumer.ConsumeSuccess {
				verdict = one
			}
		}
		return verdict, nil
	}
	if err := opened.Subscribe(args.Topic, selector(args), handleAll); err != nil {
		return nil, err
	}
	if err := opened.Start(); err != nil {
		return nil, err
	}
	s.add(args.Name, pushConsumer{opened, box})
	return nil, nil
}

func received(s *session, args arguments) (any, error) {
	opened, err := get[pushConsumer](s, args.Name)
	if err != nil {
		return nil, err
	}
	return opened.inbox.take(args.Count, time.Duration(args.TimeoutMillis)*time.Millisecond), nil
}

func openPullConsumer(s *session, args arguments) (any, error) {
	opened, err := rocketmq.NewPullConsumer(consumerOptions(args)...)
	if err != nil {
		return nil, err
	}
	return start(s, args.Name, opened, opened.Subscribe(args.Topic, selector(args)))
}

func poll(s *session, args arguments) (any, error) {
	opened, err := get[rocketmq.PullConsumer](s, args.Name)
	if err != nil {
		return nil, err
	}
	found := []map[string]any{}
	deadline := time.Now().Add(time.Duration(args.TimeoutMillis) * time.Millisecond)
	for len(found) < args.Count && time.Now().Before(deadline) {
		polled, err := opened.Poll(context.Background(), time.Until(deadline))
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, message := range polled.GetMsgList() {
			found = append(found, asJSON(message))
		}
		opened.ACK(context.Background(), polled, consumer.ConsumeSuccess)
	}
	return found, nil
}
