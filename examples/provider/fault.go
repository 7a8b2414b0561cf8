package provider

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"
)

// Kind is the kind of a fault.
type Kind string

const (
	// TimeoutBefore does nothing and does not answer. It ends, and the connection is closed, when
	// the client leaves, when the delay of the rule is over, or when it is released by name.
	TimeoutBefore Kind = "timeout_before"
	// TimeoutAfter executes the request and does not answer. It ends like TimeoutBefore.
	TimeoutAfter Kind = "timeout_after"
	// ErrorBefore does nothing and answers with the status of the
	// rule. With 503, the answer states that nothing was done.
	ErrorBefore Kind = "error_before"
	// ErrorAfter executes the request and answers with the status of the rule, which reveals nothing about the effect.
	ErrorAfter Kind = "error_after"
	// ResetBefore does nothing and resets the connection.
	ResetBefore Kind = "reset_before"
	// ResetAfter executes the request and resets the connection.
	ResetAfter Kind = "reset_after"
	// Delay waits before it executes the request, even if the client
	// leaves meanwhile, like a request that is still on its way.
	Delay Kind = "delay"
	// Hold is a Delay that lasts until it is released by name, so that a test need not guess a time.
	Hold Kind = "hold"
	// HoldAfter executes the request, and answers when it is released by name.
	HoldAfter Kind = "hold_after"

	// WebhookDuplicate sends the event twice.
	WebhookDuplicate Kind = "webhook_duplicate"
	// WebhookDelay sends the event after the delay of the rule.
	WebhookDelay Kind = "webhook_delay"
	// WebhookFirst sends the event before the request is answered: the
	// answer waits for the receiver's first response to the event.
	WebhookFirst Kind = "webhook_first"
	// WebhookDrop does not send the event.
	WebhookDrop Kind = "webhook_drop"
	// WebhookReordered sends the event after the next event. If there is no next event,
	// it is sent after the delay of the rule, or after a second if the rule has no delay.
	WebhookReordered Kind = "webhook_reordered"
)

func (k Kind) before() bool {
	return slices.Contains([]Kind{TimeoutBefore, ErrorBefore, ResetBefore, Delay, Hold}, k)
}

func (k Kind) after() bool {
	return slices.Contains([]Kind{TimeoutAfter, ErrorAfter, ResetAfter, HoldAfter}, k)
}

func (k Kind) onRequest() bool { return k.before() || k.after() }

func (k Kind) onWebhook() bool {
	return slices.Contains([]Kind{WebhookDuplicate, WebhookDelay, WebhookFirst, WebhookDrop, WebhookReordered}, k)
}

// Match selects requests. An empty field matches all.
type Match struct {
	// Method is the method of the request, such as POST. Default: any.
	Method string `json:"method,omitempty"`
	// Path is the path of the request, as a pattern of path.Match: /charges, or /charges/*. Default: any.
	Path string `json:"path,omitempty"`
	// Reference is the reference of the charge that the request makes, looks up or refunds. A look-up by key alone
	// has no reference, and neither has a look-up of refunds; the reference of a refund does not count. Default: any.
	Reference string `json:"reference,omitempty"`
}

func (m Match) covers(subject Match) bool {
	inPath, _ := path.Match(m.Path, subject.Path)
	return (m.Method == "" || m.Method == subject.Method) &&
		(m.Path == "" || inPath) &&
		(m.Reference == "" || m.Reference == subject.Reference)
}

// Rule is one fault of the script.
type Rule struct {
	// Match selects the requests. Default: all.
	Match Match `json:"match,omitzero"`
	// Kind is what happens to them.
	Kind Kind `json:"kind"`
	// Times is how often the rule strikes before it is used up. Default: 0, without a limit.
	Times int `json:"times,omitempty"`
	// Delay is the longest time for the kinds that wait. In JSON it is a text such as "150ms". Default: no limit.
	Delay time.Duration `json:"-"`
	// Rate is the chance, between 0 and 1, that the rule strikes a matching request. Default: 0, always.
	Rate float64 `json:"rate,omitempty"`
	// Status is the status of ErrorBefore and ErrorAfter, a 5xx. Default: 500.
	Status int `json:"status,omitempty"`
	// Name is the name by which a test waits for the rule to strike, and releases what it holds. Default: none.
	Name string `json:"name,omitempty"`
}

type (
	plainRule Rule
	wireRule  struct {
		plainRule
		Delay string `json:"delay,omitempty"`
	}
)

// MarshalJSON encodes the delay as a readable text.
func (r Rule) MarshalJSON() ([]byte, error) {
	wire := wireRule{plainRule: plainRule(r)}
	if r.Delay != 0 {
		wire.Delay = r.Delay.String()
	}
	return json.Marshal(wire)
}

// UnmarshalJSON refuses unknown fields, because a misspelt rule would strike unintended requests.
func (r *Rule) UnmarshalJSON(data []byte) error {
	var wire wireRule
	if err := decodeStrictly(data, &wire); err != nil {
		return err
	}
	*r = Rule(wire.plainRule)
	if wire.Delay == "" {
		return nil
	}
	var err error
	r.Delay, err = time.ParseDuration(wire.Delay)
	return err
}

func (r Rule) validate() error {
	_, badPath := path.Match(r.Match.Path, "")
	switch {
	case !r.Kind.onRequest() && !r.Kind.onWebhook():
		return fmt.Errorf("there is no kind %q", r.Kind)
	case badPath != nil:
		return fmt.Errorf("path %q: %w", r.Match.Path, badPath)
	case r.Times < 0 || r.Delay < 0:
		return fmt.Errorf("times and delay cannot be negative")
	case r.Rate < 0 || r.Rate > 1:
		return fmt.Errorf("rate %v is not between 0 and 1", r.Rate)
	case r.Status != 0 && (r.Status < 500 || r.Status > 599):
		return fmt.Errorf("status %d is not a 5xx", r.Status)
	case (r.Kind == Hold || r.Kind == HoldAfter) && r.Name == "":
		return fmt.Errorf("%s needs a name, or nothing can release it", r.Kind)
	case (r.Kind == Delay || r.Kind == WebhookDelay) && r.Delay == 0:
		return fmt.Errorf("%s needs a delay", r.Kind)
	}
	return nil
}

// Faults is a script of faults. A request is struck by the first matching rule that is not used up and whose chance
// comes up. Rules about the request and rules about its webhook are separate, so that both can strike at once.
//
// A script without rates is deterministic. With rates, the same
// seed and the same requests in the same order get the same faults.
type Faults struct {
	// Seed is the seed of the random sequence for the rates. Default: 0.
	Seed uint64 `json:"seed,omitempty"`
	// Rules are tried in order. Default: none, and nothing fails.
	Rules []Rule `json:"rules"`
}

// RandomFaults returns a script for chaos runs: each kind strikes any request with its rate. The kinds are tried in
// the order of their names, so that a later kind gets a chance only if the earlier ones do not strike. The delay is
// for all kinds that wait. Hold and HoldAfter are not for such a script, because nothing would release them.
func RandomFaults(seed uint64, delay time.Duration, rates map[Kind]float64) Faults {
	faults := Faults{Seed: seed}
	for _, kind := range slices.Sorted(maps.Keys(rates)) {
		// A rate of zero in a rule means always; here it means never.
		if rates[kind] > 0 {
			faults.Rules = append(faults.Rules, Rule{Kind: kind, Rate: rates[kind], Delay: delay})
		}
	}
	return faults
}

func (f Faults) validate() error {
	for i, rule := range f.Rules {
		if err := rule.validate(); err != nil {
			return fmt.Errorf("rule %d of the faults: %w", i+1, err)
		}
	}
	return nil
}
