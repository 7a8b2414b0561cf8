package rehearsal

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// step is one thing to try: its description, the command line, and the expected result.
type step struct{ say, run, expect string }

// guide prints what there is and what to try. Its keys stay the same over a
// restart, so that a user who continues after a crash sees the same command lines.
func (w *world) guide(out io.Writer, url string) error {
	key, kept, err := w.dir.keep("guide-key", func() string { return strings.ToLower(rand.Text()[:10]) })
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Listening on %s\n", url)
	if w.program.Monitor != nil {
		fmt.Fprintf(out, "Its metrics are at %s/metrics, for Prometheus\n", url)
	}
	fmt.Fprintf(out, `Its payment provider is at %s, with its ledger in %s
The records are %s

Try it in another terminal, in this order:

`, w.provider.URL, w.ledger(), w.records())
	number := show(out, 1, apiSteps(url, key))
	if w.dir.temporary {
		fmt.Fprint(out, "To see a crash in the middle of a refund, start with --dir DIR, so that the data outlives it.\n\n")
	} else {
		fmt.Fprint(out, "A crash in the middle of a refund:\n\n")
		show(out, number, w.crashSteps(url, key))
	}
	if kept {
		fmt.Fprintln(out, "The keys are those of the last start: what was done is answered again. Another --dir starts over.")
	}
	fmt.Fprintln(out, "Bearer bob is another account, with keys of its own. Ctrl-C ends the demo.")
	return nil
}

// records returns where the records are, and how long they are kept.
func (w *world) records() string {
	stay := "kept at the end"
	if w.dir.temporary {
		stay = "removed at the end"
	}
	switch {
	case w.place.Where != "":
		server, _ := withoutPassword(w.config.Store)
		return fmt.Sprintf("on %s at %s, in %s, %s", w.place.Kind, server, w.place.Where, stay)
	case w.config.Store != "":
		return fmt.Sprintf("on SQLite in %s, %s", strings.TrimPrefix(w.place.URL, "sqlite:"), stay)
	default:
		return fmt.Sprintf("on SQLite in %s, %s", w.node.File, stay)
	}
}

// show prints the steps, and returns the number for the next step.
func show(out io.Writer, number int, steps []step) int {
	for _, s := range steps {
		fmt.Fprintf(out, "%d. %s Expect %s.\n   %s\n\n", number, s.say, s.expect, s.run)
		number++
	}
	return number
}

const asAlice = "Authorization: Bearer alice"

// post returns a curl command line.
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
	again, hint := w.again("--no-load", "--addr "+strings.TrimPrefix(url, "http://"))
	start := "Start it again, in its own terminal."
	if hint != "" {
		start = "Start it again, in its own terminal, " + hint + "."
	}
	return []step{
		{
			"Let the provider make refunds, but hold its answers back.",
			"curl -s -i -X PUT " + w.provider.URL + "/faults -d '" + holdRefunds + "'",
			"204",
		},
		{"Another refund, in the background.", refund + " & sleep 1", "no answer"},
		{
			"Kill the system in the middle of it.", fmt.Sprintf("kill -9 %d", os.Getpid()),
			"the refund to fail without an answer",
		},
		{start, again, "this text again, with the same keys"},
		{
			"The same refund, again and again.", refund,
			fmt.Sprintf("409 for up to %s, and then 201: the provider has told that the refund was made", manualLease),
		},
		{
			"How often it was made, by the provider's ledger.",
			fmt.Sprintf("grep -c %s %s", quoted(key+"-crash"), quoted(w.ledger())), "1",
		},
	}
}

// again returns the command line that runs the same demo, with further flags. It
// can be pasted into a shell. Only a password is left out; hint then says so.
func (w *world) again(flags ...string) (line, hint string) {
	words := append(w.program.line(), flags...)
	if w.config.Processes > 1 {
		words = append(words, fmt.Sprintf("--processes %d", w.config.Processes))
	}
	if w.config.InFlight != "" && w.config.InFlight != "conflict" {
		words = append(words, "--in-flight "+w.config.InFlight)
	}
	if w.config.Unprotected {
		words = append(words, "--unprotected")
	}
	if !w.dir.temporary {
		words = append(words, "--dir "+quoted(w.dir.path))
	}
	if w.config.Store != "" {
		store, had := withoutPassword(w.config.Store)
		words = append(words, "--store "+quoted(store))
		if had {
			hint = "with the password in PGPASSWORD"
			if w.place.Kind != "PostgreSQL" {
				hint = "with the password in the URL"
			}
		}
	}
	return strings.Join(words, " "), hint
}

// cached matches the paths at which the go command keeps the programs that it has run.
var cached = regexp.MustCompile(`go-build|[/\\][0-9a-f]{64}-d[/\\]`)

// line returns the command line of this program. A program built by `go run` is removed when it ends.
func (p Program) line() []string {
	line := []string{quoted(os.Args[0])}
	if cached.MatchString(os.Args[0]) {
		line[0] = p.GoRun
	}
	if p.Command != "" {
		line = append(line, p.Command)
	}
	return line
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted returns a word in the form in which a shell takes it unchanged.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
