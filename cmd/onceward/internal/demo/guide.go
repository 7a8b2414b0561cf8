package demo

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
)

// step is one thing to try: what it is, the line to type, and what to expect of it.
type step struct{ say, run, expect string }

// guide says where everything is and what to try.
func (w *world) guide(out io.Writer, url string) {
	key := strings.ToLower(rand.Text()[:10])
	fmt.Fprintf(out, `Onceward demo: a payments system that does each thing once.
Listening on %s
Its payment provider is at %s
Data in %s, with the provider's ledger in ledger.jsonl

Try it in another terminal, in this order:

`, url, w.provider.URL, w.dir.path)
	number := show(out, 1, apiSteps(url, key))
	if w.dir.temporary {
		fmt.Fprint(out, "To see a crash in the middle of a refund, start with --dir DIR, so that the data outlives it.\n\n")
	} else {
		fmt.Fprint(out, "A crash in the middle of a refund:\n\n")
		show(out, number, w.crashSteps(url, key))
	}
	fmt.Fprintln(out, "Bearer bob is another account, with keys of its own. Ctrl-C ends the demo.")
}

// show prints the steps, and returns the number that the next one has.
func show(out io.Writer, number int, steps []step) int {
	for _, s := range steps {
		fmt.Fprintf(out, "%d. %s Expect %s.\n   %s\n\n", number, s.say, s.expect, s.run)
		number++
	}
	return number
}

const asAlice = "Authorization: Bearer alice"

// post is a curl line.
func post(url, key, body string) string {
	return fmt.Sprintf(`curl -s -i %s -H '%s' -H 'Idempotency-Key: %s' -H 'Content-Type: application/json' -d '%s'`,
		url, asAlice, key, body)
}

func apiSteps(url, key string) []step {
	payment := func(amount int) string {
		return post(url+"/payments", key, fmt.Sprintf(`{"customer":"c1","amount":%d,"currency":"EUR"}`, amount))
	}
	return []step{
		{"A payment.", payment(1999), "201 Created"},
		{"The same request again.", payment(1999), "the same 201, byte for byte, with Idempotent-Replayed: true"},
		{"The same key with another amount.", payment(2999), "422, and nothing is done"},
		{
			"Its id, from one more retry, and what became of it.",
			fmt.Sprintf(`PAYMENT=$(%s | grep -o 'pay_[A-Za-z0-9]*' | head -n 1); curl -s %s/payments/$PAYMENT -H '%s'`,
				payment(1999), url, asAlice),
			`"state":"charged"; "pending" at first`,
		},
		{"A refund of a part of it.", post(url+"/payments/$PAYMENT/refund", key+"-refund", `{"amount":500}`), "201 Created"},
		{
			"A booking, in three steps.", post(url+"/bookings", key+"-booking", `{"item":"concert","price":4500}`),
			`201 Created with "state":"confirmed"`,
		},
	}
}

const holdRefunds = `{"rules":[{"match":{"method":"POST","path":"/refunds"},"kind":"hold_after","name":"hold"}]}`

func (w *world) crashSteps(url, key string) []step {
	refund := post(url+"/payments/$PAYMENT/refund", key+"-crash", `{"amount":300,"reference":"`+key+`-crash"}`)
	again := fmt.Sprintf("%s demo --no-load --dir '%s' --addr %s", program(), w.dir.path, strings.TrimPrefix(url, "http://"))
	if w.config.Store != "" {
		again += " --store URL"
	}
	return []step{
		{
			"Let the provider make refunds, but hold its answers back.",
			"curl -s -i -X PUT " + w.provider.URL + "/faults -d '" + holdRefunds + "'",
			"204",
		},
		{"Another refund, in the background.", refund + " &", "no answer"},
		{"Kill the system in the middle of it.", fmt.Sprintf("kill -9 %d", os.Getpid()), "the refund to fail"},
		{"Start it again, in its own terminal.", again, "this text again"},
		{
			"The same refund, again and again.", refund,
			"409 for some seconds, and then 201: the provider has told that the refund was made",
		},
		{"How often it was made, by the provider's ledger.", fmt.Sprintf("grep -c '%s-crash' '%s'", key, w.ledger()), "1"},
	}
}

// program is how this program was called. What `go run` has built is gone when the program ends.
func program() string {
	if strings.Contains(os.Args[0], "go-build") {
		return "go run ./cmd/onceward"
	}
	return os.Args[0]
}
