// Package client is the caller's side: an [http.RoundTripper] that gives each logical operation
// one idempotency key and retries it by rules that are safe, always with the same key.
//
//	c, err := client.NewClient(client.Config{AttemptTimeout: 10 * time.Second})
//	…
//	resp, err := c.Post(url, "application/json", body)
//
// One [http.Request] that is passed to [Transport.RoundTrip] is one operation, however many
// attempts it takes. [Classify] returns what an answer, or a missing answer, means for the
// operation: it was answered, it was provably not executed, or the outcome is unknown. An
// unknown outcome is never guessed, and such an operation is never sent with another key.
//
// For an operation that must be finished even after a crash of the
// caller, use a message of the outbox: see package outbox/httpcall.
//
// The package needs only the standard library and works with any server
// that accepts idempotency keys: a [Profile] describes the server.
package client
