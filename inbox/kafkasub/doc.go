// Package kafkasub consumes from Kafka with an inbox: each event is applied once, in the consumer's own transaction, however
// often it is delivered.
//
//	client, err := kafkasub.Open([]string{"broker-1:9092"}, "mailer", []string{"charges"})
//	…
//	defer client.CloseAllowingRebalance()
//	err = kafkasub.Consumer{
//		Client: client,
//		Inbox:  inbox.New(store),
//		Name:   "mailer",
//		Handle: func(ctx context.Context, r *kgo.Record) error {
//			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails …`)
//			return err
//		},
//	}.Run(ctx)
//
// The partitions of a round, which is what one poll has brought, are worked on at the same time, and the records of a
// partition one after the other. Offsets are committed when the records before them have been applied. A crash in between
// makes records come again, and the inbox recognises them by the ID of their event.
//
// # Failures
//
// If a record cannot be applied, its partition waits and the record is tried again, with growing pauses, while the other
// partitions go on. After [Consumer.MaxAttempts] failures, or at once if it has no event ID or the handler says so with
// [ErrPoison], the record is given to [Consumer.OnPoison], for example to be put aside. Without that, the consumer stops with
// an error: nothing is skipped in silence. While the store is not available, tries do not count, since that says nothing about
// the record.
package kafkasub
