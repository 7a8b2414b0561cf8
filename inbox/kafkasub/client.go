package kafkasub

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Open returns a client that is fit for a [Consumer]: a member of the group that commits only when it is told to, and that
// keeps its partitions while it works on their records. The options come on top, such as for TLS and SASL. The caller closes
// the client, with CloseAllowingRebalance.
func Open(seeds []string, group string, topics []string, options ...kgo.Opt) (*kgo.Client, error) {
	if len(seeds) == 0 || len(topics) == 0 {
		return nil, errors.New("kafkasub: there is no broker to begin with, or no topic")
	}
	all := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topics...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	}
	client, err := kgo.NewClient(append(all, options...)...)
	if err != nil {
		return nil, fmt.Errorf("kafkasub: %w", err)
	}
	if err := checkClient(client); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// checkClient refuses a client by which records could be skipped, or offsets committed for partitions that have moved away.
func checkClient(client *kgo.Client) error {
	var wrong []error
	if group, _ := client.OptValue(kgo.ConsumerGroup).(string); group == "" {
		wrong = append(wrong, errors.New("kafkasub: the client is in no group: make it with kgo.ConsumerGroup"))
	}
	if disabled, _ := client.OptValue(kgo.DisableAutoCommit).(bool); !disabled {
		wrong = append(wrong, errors.New("kafkasub: the client commits by itself, also what was not applied: make it with kgo.DisableAutoCommit"))
	}
	if blocks, _ := client.OptValue(kgo.BlockRebalanceOnPoll).(bool); !blocks {
		wrong = append(wrong, errors.New("kafkasub: partitions can move away while their records are worked on: make the client with kgo.BlockRebalanceOnPoll"))
	}
	return errors.Join(wrong...)
}
