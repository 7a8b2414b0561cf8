// Package kafka connects Onceward with Kafka: [Publisher] publishes the events of an outbox, and [Consumer] applies
// events with an inbox.
//
// # Publishing
//
//	client, err := kafka.NewPublisherClient([]string{"broker-1:9092", "broker-2:9092"})
//	…
//	defer client.Close()
//	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Client: client})
//	…
//	handler := outbox.Publish(publisher)
//
// Events are in the binary mode of the Kafka binding of CloudEvents 1.0. The value of a record is the payload of the
// message as it is, and the attributes of the event are in headers that begin with "ce_". The key of the record is the
// event's partition key, so that all events about one aggregate are in one partition, in the order in which they were
// committed. An event without an aggregate has no key, and goes to any partition.
//
// An event counts as published when all in-sync replicas have it. The client must be an idempotent producer that waits
// for them, and [NewPublisher] refuses another: only then do the client's own retries neither repeat nor reorder
// records. Its partitioner has to choose by the key, as the default one does.
//
// A delivery that ends before Kafka has answered, because its time is up, is reported as a failure although the record
// may still be written. The next delivery of the event by the same [Publisher] waits for the answer to that record.
// Another process publishes it again under the same ID, and a consumer with an inbox applies it once.
//
// # Consuming
//
//	client, err := kafka.NewConsumerClient([]string{"broker-1:9092"}, "mailer", []string{"charges"})
//	…
//	defer client.CloseAllowingRebalance()
//	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{
//		Client: client,
//		Inbox:  inbox.New(store),
//		Name:   "mailer",
//		Handle: func(ctx context.Context, r *kgo.Record) error {
//			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails …`)
//			return err
//		},
//	})
//	…
//	err = consumer.Run(ctx)
//
// Each event is applied once, in the consumer's own transaction, however often it is delivered. The partitions of a
// round, which is what one poll has brought, are worked on at the same time, and the records of a partition one after
// the other. Offsets are committed when the records before them have been applied. A crash in between makes records
// come again, and the inbox recognises them by the ID of their event.
//
// If a record cannot be applied, its partition waits and the record is tried again, with a growing backoff, while the
// other partitions go on. After [ConsumerConfig.MaxAttempts] failures, or at once if it has no event ID or the handler
// says so with [ErrPoison], the record is given to [ConsumerConfig.OnPoison], for example to be put aside. Without
// that, the consumer stops with an error: nothing is skipped in silence. While the store is not available, failures do
// not count, since that says nothing about the record.
package kafka
