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
// Events are sent in the binary mode of the Kafka binding of CloudEvents 1.0. The value of a record is the unchanged
// payload of the message. The attributes of the event are in headers that begin with "ce_". The key of the record is
// the event's partition key, so all events about one aggregate are in one partition, in the order of their commits. An
// event without an aggregate has no key, and may be in any partition.
//
// An event counts as published when all in-sync replicas have it. The client must be an idempotent producer that waits
// for them, otherwise [NewPublisher] returns an error: only then do the client's own retries neither repeat nor reorder
// records. Its partitioner must choose by the key, as the default partitioner does.
//
// A delivery whose time ends before Kafka has answered is reported as a failure, although the record may still be
// written. The next delivery of the event by the same [Publisher] waits for the answer to that record. Another process
// publishes the event again under the same ID, and a consumer with an inbox applies it once.
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
// Each event is applied once, in the consumer's own transaction, however often it is delivered. A round consists of the
// records of one poll: its partitions are processed concurrently, and the records of a partition in order. Offsets are
// committed after the records before them have been applied. After a crash between the two, records are delivered
// again, and the inbox recognises them by the ID of their event.
//
// If a record cannot be applied, its partition waits and the record is retried with a growing backoff, while the other
// partitions continue. The record is poison after [ConsumerConfig.MaxAttempts] failures, or at once if it has no event
// ID or the handler returns [ErrPoison]. Poison is passed to [ConsumerConfig.OnPoison], for example to store it.
// Without OnPoison, the consumer stops with an error: no record is skipped silently. Failures while the store is
// unavailable do not count, because they are not the record's fault.
package kafka
