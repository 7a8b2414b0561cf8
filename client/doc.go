// Package client is the caller's side: an [http.RoundTripper] that gives each logical operation one idempotency key,
// and sends it again by rules that are safe, always with the same key.
//
//	c, err := client.NewClient(client.Config{AttemptTimeout: 10 * time.Second})
//	…
//	resp, err := c.Post(url, "application/json", body)
//
// One [http.Request] that is handed to [Transport.RoundTrip] is one operation, however many attempts it takes. What an
// answer, or the lack of one, says about the operation is told by [Classify]: it was answered, it was provably not
// executed, or that is not known. What is not known is never guessed, and never sent with another key.
//
// An operation that is finished after a crash of the caller too is a message of the outbox: package outbox/httpcall.
//
// The package needs the standard library alone, and works with any server that takes idempotency keys: a [Profile]
// says how.
package client
