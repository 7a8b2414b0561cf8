package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// outcomeFlags are the flags for the known outcome of an operation, or of its current step.
type outcomeFlags struct {
	Completed   bool     `xor:"outcome" help:"It happened, or it happened and failed: every retry gets the answer of --status, --header and --body-file."`
	NotExecuted bool     `xor:"outcome" help:"It did not happen and will not: a retry executes. With --step, the operation continues at the step."`
	Done        bool     `xor:"outcome" help:"With --step: the step was done, and the operation continues after it."`
	Again       bool     `xor:"outcome" help:"With --step: retry the step with the data of --data-file."`
	Status      int      `help:"The answer's status, such as 201; 200 for a function."`
	Header      []string `sep:"none" placeholder:"NAME:VALUE" help:"A header field of the answer. Repeatable."`
	BodyFile    string   `placeholder:"FILE" help:"The answer's body; - for the standard input."`
	Text        bool     `help:"The answer is text for a tool of a language model, which has no output schema."`
	Step        string   `help:"The step that --done, --not-executed or --again is about."`
	DataFile    string   `placeholder:"FILE" help:"All carried data, as it is after the step; - for the standard input."`
	ProviderID  string   `help:"The provider's id of the effect."`
}

// check refuses flags that contradict each other.
func (f *outcomeFlags) check() error {
	step := f.Step != ""
	switch {
	case !f.Completed && !f.NotExecuted && !f.Done && !f.Again:
		return operate.Usage("say what you have learned: --completed, --not-executed, or --step NAME with --done, " +
			"--not-executed or --again")
	case (f.Done || f.Again) && !step:
		return operate.Usage("--done and --again are about a step: add --step NAME")
	case f.Completed && step:
		return operate.Usage("--completed is for the whole of an operation: for a step that was done, use --done")
	case f.Completed && (f.Status < 200 || f.Status > 999):
		return operate.Usage("--completed needs the status of the answer, from 200 to 999: add --status")
	case !f.Completed && (f.Status != 0 || len(f.Header) > 0 || f.BodyFile != "" || f.Text):
		return operate.Usage("--status, --header, --body-file and --text are the answer of --completed")
	case f.DataFile != "" && !f.Done && !f.Again:
		return operate.Usage("--data-file is what the operation carries after --done or --again")
	case f.ProviderID != "" && !f.Completed && !f.Done:
		return operate.Usage("--provider-id is that of an effect: it goes with --completed or --done")
	}
	return nil
}

// response returns the answer that --completed gives to an operation.
func (f *outcomeFlags) response(operation string) (store.Response, error) {
	header := make(http.Header)
	for _, field := range f.Header {
		name, value, found := strings.Cut(field, ":")
		if name = strings.TrimSpace(name); !found || !isToken(name) || strings.ContainsFunc(value, isControl) {
			return store.Response{}, operate.Usage("--header '%s' is not NAME:VALUE", output.Text(field))
		}
		header.Add(name, strings.TrimSpace(value))
	}
	body, err := readInput(f.BodyFile)
	if err == nil && len(body) > 0 && (f.Status == http.StatusNoContent || f.Status == http.StatusNotModified) {
		err = operate.Usage("an answer of status %d has no body: leave --body-file out, or give another --status", f.Status)
	}
	if err == nil {
		err = f.checkTool(operation, body)
	}
	return reconcile.Response(f.Status, header, body), err
}

// checkTool refuses a tool's success that is not a JSON object, unless it is meant as text: the MCP adapter
// returns it as the structured content where the tool has an output schema, and cannot replay anything else.
func (f *outcomeFlags) checkTool(operation string, body []byte) error {
	if !strings.HasPrefix(operation, "tools/call ") || f.Text || f.Status >= http.StatusBadRequest {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil || object == nil {
		return operate.Usage("the answer of a tool with an output schema is a JSON object, and this one is not: " +
			"retries could not be answered; if the tool has no output schema, add --text")
	}
	return nil
}

// isToken reports whether a text is a valid header field name. Fields with other names are dropped on sending.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// isControl reports whether a rune is not allowed in a header field value.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// outcome returns the outcome that --step describes.
func (f *outcomeFlags) outcome() (phase.StepOutcome, error) {
	o := phase.StepOutcome{Step: f.Step, ProviderID: f.ProviderID}
	switch {
	case f.Done:
		o.Result = phase.ResultDone
	case f.NotExecuted:
		o.Result = phase.ResultNotExecuted
	default:
		o.Result = phase.ResultRetry
	}
	data, err := readInput(f.DataFile)
	if err == nil && data != nil {
		if o.Data = data; !json.Valid(data) {
			err = operate.Usage("what %s holds is not JSON", f.DataFile)
		}
	}
	return o, err
}

// readInput reads a file or the standard input; it returns nothing for an empty name.
func readInput(name string) (content []byte, err error) {
	switch name {
	case "":
		return nil, nil
	case "-":
		content, err = io.ReadAll(os.Stdin)
	default:
		content, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, operate.Usage("the file cannot be read: %v", err)
	}
	return content, nil
}

// resolveFlags are the flags of a command that settles an operation.
type resolveFlags struct {
	retryFlags
	outcomeFlags
}

// resolve settles an operation with its known outcome.
func (c *resolveFlags) resolve(ends interrupts, out io.Writer, dead bool) error {
	if err := c.outcomeFlags.check(); err != nil {
		return err
	}
	return c.acting(ends, &c.secretFlags, &c.actFlags, out, func(ctx context.Context, s *operate.Session) ([]act, error) {
		rec, err := s.Record(ctx, c.ref())
		if err == nil {
			err = c.attemptFlags.check(&rec)
		}
		if err == nil {
			err = checkUnknown(&rec, dead)
		}
		if err == nil {
			err = checkSealed(s, &rec)
		}
		if err != nil {
			return nil, err
		}
		a, err := c.resolution(s, &rec)
		return []act{a}, err
	})
}

// checkSealed refuses to store an unsealed answer in a sealed store, because it would be readable there.
func checkSealed(s *operate.Session, rec *store.Record) error {
	if store.IsSealed(rec.Data) && !s.Unsealed() {
		return operate.Usage("the store is sealed, and what you give would lie in it unsealed: add --seal-key-file")
	}
	return nil
}

// resolution returns the act that settles a record.
func (c *resolveFlags) resolution(s *operate.Session, rec *store.Record) (act, error) {
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	progress, phased := phase.Inspect(rec)
	switch {
	case c.Step != "":
		return c.stepResolution(s, rec, claim, progress, phased)
	case c.Completed:
		response, err := c.response(rec.Operation)
		if err != nil {
			return act{}, err
		}
		a := onRecord(rec, "resolve completed",
			fmt.Sprintf("every retry gets %d with a body of %d bytes", c.Status, len(response.Body)))
		if phased == nil {
			a.effects = append(a.effects, "NO STEP OF IT RUNS ANY MORE: what is left of it is not done; for one step use --step")
		}
		a.do = func(ctx context.Context, by reconcile.By) error {
			return s.Operator.ResolveCompleted(ctx, by, claim, store.Completion{Response: response, ProviderID: c.ProviderID})
		}
		return a, nil
	default:
		a := onRecord(rec, "resolve not executed", "a retry of the client executes, from the beginning",
			"if the request still arrives at the other system, and that does not know its key, the work is done twice")
		a.do = func(ctx context.Context, by reconcile.By) error { return s.Operator.ResolveNotExecuted(ctx, by, claim) }
		return a, nil
	}
}

// stepResolution returns the act that settles the current step.
func (c *resolveFlags) stepResolution(
	s *operate.Session, rec *store.Record, claim store.Claim, progress *phase.Progress, phased error,
) (act, error) {
	if phased != nil {
		return act{}, operate.Usage("--step is for phased operations: %v", phased)
	}
	if progress.Step != c.Step {
		return act{}, operate.Refused("nothing was done: the current step is '%s', not '%s'", output.Text(progress.Step),
			output.Text(c.Step))
	}
	outcome, err := c.outcome()
	if err != nil {
		return act{}, err
	}
	if _, err := progress.Checkpoint(outcome); err != nil {
		return act{}, operate.Usage("%v", err)
	}
	a := onRecord(rec, fmt.Sprintf("resolve step %q as %s", c.Step, outcome.Result))
	switch outcome.Result {
	case phase.ResultDone:
		a.effects = []string{"the operation goes on behind the step: a resumer, or the client's retry, does the others"}
	case phase.ResultNotExecuted:
		a.effects = []string{"the operation goes on at the step: a resumer, or the client's retry, does it"}
	default:
		a.effects = []string{"the step is looked into again, with all attempts before it"}
	}
	if rec.State == store.StateInProgress {
		a.effects = append(a.effects, "its owner, should it only be paused, is stopped first")
	}
	a.do = func(ctx context.Context, by reconcile.By) error {
		return s.Operator.ResolveStep(ctx, by, claim, outcome)
	}
	return a, nil
}
