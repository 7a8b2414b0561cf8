// Package httppub publishes the events of an outbox by HTTP: webhooks, signed, in the binary mode of CloudEvents 1.0.
//
//	publisher, err := httppub.New(httppub.Config{
//		Endpoint: "https://receiver.example/hooks",
//		Secrets:  []string{"whsec_…"},
//	})
//	…
//	handler := outbox.Publish(publisher)
//
// The body is the payload of the message as it is. The attributes of the event are in headers that begin with "ce-", its
// downstream key is in Idempotency-Key, and webhook-id, webhook-timestamp and webhook-signature are those of Standard
// Webhooks, where the id is the ID of the event. All of them but the timestamp and the signature are the same each time the
// event is sent, so that the receiver can tell a repetition. Package reconcile/webhook verifies such signatures.
//
// # Where it sends to
//
// Receivers are often named by somebody who is not trusted, such as a customer. So an address that is not one of the public
// Internet is refused when a connection is made, after the name was resolved, which a name that resolves differently the
// next time does not get around. Redirects are not followed, proxies of the environment are not used, and plain HTTP is not
// spoken, unless the [Config] says so.
//
// # What an answer means
//
// A status of 2xx confirms the event. [PermanentStatus] tells which make a dead letter of the message at once: those by which
// the receiver refuses this very event, and 410, by which it has gone. All else is tried again: it can be repaired on the
// other side without a new event, as can a URL that is not found (404) or credentials that are refused (401, 403), or it
// passes (408, 409, 425, 429, 5xx, and failures of the network). The receiver's Retry-After is honoured.
package httppub
