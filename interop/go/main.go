// Apache's Go client, driven line by line, as interop/src/main/java/orbitmq/Client.java drives the Java one.
//
// A request is one line {"id": 1, "verb": "Send", ...}; its answer is one line {"id": 1, "result": ...} or
// {"id": 1, "error": {"type": ..., "message": ...}}. Requests run side by side, so answers come in any order. The end of standard
// input closes everything that is open.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// verbs are the same, with the same arguments, as the Java client's; those of administration are the Go client's own.
var verbs = map[string]func(*session, arguments) (any, error){
	"OpenProducer":            openProducer,
	"Send":                    send,
	"OpenTransactionProducer": openTransactionProducer,
	"SendInTransaction":       sendInTransaction,
	"Request":                 request,
	"OpenResponder":           openResponder,
	"OpenPushConsumer":        openPushConsumer,
	"Received":                received,
	"OpenPullConsumer":        openPullConsumer,
	"Poll":                    poll,
	"OpenAdminTool":           openAdminTool,
	"CreateTopic":             createTopic,
	"DeleteTopic":             deleteTopic,
	"ListTopics":              listTopics,
	"ListQueues":              listQueues,
	"ListGroups":              listGroups,
	"Close":                   closeOne,
}

// arguments of any verb; each takes what it needs.
type arguments struct {
	ID            int64     `json:"id"`
	Verb          string    `json:"verb"`
	Name          string    `json:"name"`
	NameServer    string    `json:"nameServer"`
	Group         string    `json:"group"`
	Topic         string    `json:"topic"`
	Messages      []message `json:"messages"`
	Mode          string    `json:"mode"`
	OrderKey      string    `json:"orderKey"`
	Tags          string    `json:"tags"`
	SQL           string    `json:"sql"`
	Orderly       bool      `json:"orderly"`
	Broadcasting  bool      `json:"broadcasting"`
	FailFirst     int32     `json:"failFirst"`
	Count         int       `json:"count"`
	TimeoutMillis int64     `json:"timeoutMillis"`
	AccessKey     string    `json:"accessKey"`
	SecretKey     string    `json:"secretKey"`
	Trace         bool      `json:"trace"`
	Broker        string    `json:"broker"`
	Queues        int       `json:"queues"`
	Options       options   `json:"options"`
}

type options struct {
	Namespace         string `json:"namespace"`
	MaxReconsumeTimes *int32 `json:"maxReconsumeTimes"`
}

// session is what is open, by name.
type session struct {
	lock sync.Mutex
	open map[string]interface{ Shutdown() error }
}

func (s *session) add(name string, opened interface{ Shutdown() error }) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.open[name] = opened
}

// start begins with what was made, if it was, and keeps it under its name.
func start[T interface {
	Start() error
	Shutdown() error
}](s *session, name string, made T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	s.add(name, made)
	return nil, nil
}

// get answers what `name` was opened as.
func get[T any](s *session, name string) (T, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	opened, isOne := s.open[name].(T)
	if !isOne {
		return opened, fmt.Errorf("%q is not open, or something else", name)
	}
	return opened, nil
}

func closeOne(s *session, args arguments) (any, error) {
	opened, err := get[interface{ Shutdown() error }](s, args.Name)
	if err != nil {
		return nil, err
	}
	s.lock.Lock()
	delete(s.open, args.Name)
	s.lock.Unlock()
	return nil, opened.Shutdown()
}

func main() {
	rlog.SetLogLevel("warn")
	answers := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // whatever the library prints is no answer
	var writing sync.Mutex
	opened := &session{open: map[string]interface{ Shutdown() error }{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var args arguments
		if err := json.Unmarshal(lines.Bytes(), &args); err != nil {
			panic(err)
		}
		go func() {
			answer := run(opened, args)
			writing.Lock()
			defer writing.Unlock()
			if err := answers.Encode(answer); err != nil {
				panic(err)
			}
		}()
	}
	for name := range opened.open {
		if _, err := closeOne(opened, arguments{Name: name}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

func run(s *session, args arguments) map[string]any {
	verb, isKnown := verbs[args.Verb]
	if !isKnown {
		return failed(args.ID, fmt.Errorf("the Go client has no verb %q", args.Verb))
	}
	result, err := verb(s, args)
	if err != nil {
		return failed(args.ID, err)
	}
	return map[string]any{"id": args.ID, "result": result}
}

func failed(id int64, err error) map[string]any {
	return map[string]any{"id": id, "error": map[string]any{"type": fmt.Sprintf("%T", err), "message": err.Error()}}
}
