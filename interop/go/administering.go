package main

import (
	"context"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type adminTool struct{ admin.Admin }

func (tool adminTool) Shutdown() error { return tool.Close() }

func openAdminTool(s *session, args arguments) (any, error) {
	chosen := []admin.AdminOption{admin.WithResolver(primitive.NewPassthroughResolver([]string{args.NameServer}))}
	if args.AccessKey != "" {
		chosen = append(chosen, admin.WithCredentials(credentials(args)))
	}
	opened, err := admin.NewAdmin(chosen...)
	if err != nil {
		return nil, err
	}
	s.add(args.Name, adminTool{opened})
	return nil, nil
}

// createTopic makes args.Topic with args.Queues queues on the broker at the address args.Broker.
func createTopic(s *session, args arguments) (any, error) {
	tool, err := get[adminTool](s, args.Name)
	if err != nil {
		return nil, err
	}
	return nil, tool.CreateTopic(
		context.Background(),
		admin.WithTopicCreate(args.Topic),
		admin.WithBrokerAddrCreate(args.Broker),
		admin.WithReadQueueNums(args.Queues),
		admin.WithWriteQueueNums(args.Queues),
	)
}

func deleteTopic(s *session, args arguments) (any, error) {
	tool, err := get[adminTool](s, args.Name)
	if err != nil {
		return nil, err
	}
	return nil, tool.DeleteTopic(context.Background(), admin.WithTopicDelete(args.Topic))
}

func listTopics(s *session, args arguments) (any, error) {
	tool, err := get[adminTool](s, args.Name)
	if err != nil {
		return nil, err
	}
	found, err := tool.FetchAllTopicList(context.Background())
	if err != nil {
		return nil, err
	}
	return found.TopicList, nil
}

func listQueues(s *session, args arguments) (any, error) {
	tool, err := get[adminTool](s, args.Name)
	if err != nil {
		return nil, err
	}
	found, err := tool.FetchPublishMessageQueues(context.Background(), args.Topic)
	if err != nil {
		return nil, err
	}
	queues := []int{}
	for _, queue := range found {
		queues = append(queues, queue.QueueId)
	}
	return queues, nil
}

// listGroups answers each consumer group of the broker at the address args.Broker with how often it may retry.
func listGroups(s *session, args arguments) (any, error) {
	tool, err := get[adminTool](s, args.Name)
	if err != nil {
		return nil, err
	}
	found, err := tool.GetAllSubscriptionGroup(context.Background(), args.Broker, patience)
	if err != nil {
		return nil, err
	}
	retries := map[string]int{}
	for name, group := range found.SubscriptionGroupTable {
		retries[name] = group.RetryMaxTimes
	}
	return retries, nil
}
