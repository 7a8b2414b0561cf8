// Package natspub publishes the events of an outbox to NATS JetStream, in the binary mode of the NATS binding of CloudEvents
// 1.0.
//
//	js, err := jetstream.New(conn)
//	…
//	publisher, err := natspub.New(js, natspub.Config{})
//	…
//	handler := outbox.Publish(publisher)
//
// The data of a message in NATS is the payload as it is, and the attributes of the event are in headers that begin with "ce-",
// percent-encoded as the binding asks for. An event counts as published when a stream has acknowledged it. There has to be a
// stream that takes the subject: as long as there is none, events are tried again, and none is lost.
//
// The ID of the event is also the message ID, Nats-Msg-Id. The server drops a repetition by it within the stream's duplicate
// window, which is two minutes unless the stream says otherwise. A later repetition gets through, and a consumer with an
// inbox tells it by the same ID: package inbox/natssub is such a consumer.
package natspub
