// Package kafkapub publishes the events of an outbox to Kafka, in the binary mode of the Kafka binding of CloudEvents 1.0.
//
//	client, err := kafkapub.Open([]string{"broker-1:9092", "broker-2:9092"})
//	…
//	defer client.Close()
//	publisher, err := kafkapub.New(client, kafkapub.Config{})
//	…
//	handler := outbox.Publish(publisher)
//
// The value of a record is the payload of the message as it is, and the attributes of the event are in headers that begin
// with "ce_". The key of the record is the event's partition key, so that all events about one aggregate are in one partition,
// in the order in which they were committed. An event without an aggregate has no key, and goes to any partition.
//
// # Order and repetition
//
// An event counts as published when all in-sync replicas have it. The client must be an idempotent producer that waits for
// them, and [New] refuses another: only then do the client's own retries neither repeat nor reorder records. Its partitioner
// has to choose by the key, as the default one does.
//
// A delivery that ends before Kafka has answered, because its time is up, is reported as a failure although the record may
// still be written. The next delivery of the event by the same [Publisher] waits for the answer to that record. Another process
// publishes it again, under the same ID, and a consumer with an inbox applies it once: package inbox/kafkasub is such a
// consumer.
package kafkapub
