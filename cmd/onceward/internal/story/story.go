// Package story collects the history of one operation: its record, its messages and events, and the acts of operators,
// in the order of time; then the answer that a retry would get, and the commands that fit.
package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// Story is everything known about an operation.
type Story struct {
	Record view.Record `json:"record"`
	// Events are what happened, oldest first.
	Events []Event `json:"events"`
	// Steps are those of a phased operation.
	Steps []Step `json:"steps,omitempty"`
	// DownstreamKeys are what the steps sent along, by step.
	DownstreamKeys map[string]string `json:"downstream_keys,omitempty"`
	// Messages are those that the operation has added to the outbox.
	Messages []view.Message `json:"messages,omitempty"`
	// Retry is what a retry would get now.
	Retry string `json:"retry"`
	// Next is what a person can do.
	Next []Command `json:"next,omitempty"`
	// Remarks are facts that could not be found out, with the reasons.
	Remarks []string `json:"remarks,omitempty"`
	// Revealed is the content, if it was asked for.
	Revealed *Revealed `json:"revealed,omitempty"`

	record store.Record
	// unreadable means that there is a record that this program cannot read.
	unreadable bool
	progress   *phase.Progress
	late       []store.LateCompletion
	// unknown has, by attempt, the latest moment from which the outcome was unknown.
	unknown map[int64]time.Time
}

// Event is a dated fact.
type Event struct {
	At     time.Time `json:"at"`
	What   string    `json:"what"`
	By     string    `json:"by,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// Step is a step of a phased operation.
type Step struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// ProviderID is what the provider calls the effect of the step.
	ProviderID string `json:"provider_id,omitempty"`
	// Failure is what the step last failed with, and LookUpFailure why the last question about its call failed.
	Failure       string `json:"failure,omitempty"`
	LookUpFailure string `json:"look_up_failure,omitempty"`
}

// Command is a command to paste, and what it does.
type Command struct {
	When    string `json:"when"`
	Command string `json:"command"`
}

// Revealed is the content of an operation: its answer, its carried data, and a late completion.
type Revealed struct {
	Status  int           `json:"status,omitempty"`
	Header  []string      `json:"header,omitempty"`
	Body    *view.Content `json:"body,omitempty"`
	Carried *view.Content `json:"carried,omitempty"`
	Late    []Revealed    `json:"late,omitempty"`
}

// Question is what a story should contain.
type Question struct {
	// Steps are names of further steps whose downstream keys are wanted.
	Steps []string
	// Sources are the senders whose events are searched for.
	Sources []string
	// Suffix ends each command to paste: the flag that names the store.
	Suffix string
	// Now is the moment from which ages are counted.
	Now time.Time
}

// Collect collects the story of an operation. The error is [store.ErrNotFound] if nothing is known.
func Collect(ctx context.Context, s *operate.Session, id store.ID, q Question) (*Story, error) {
	t := &Story{}
	h, err := s.Operator.History(ctx, id)
	if errors.Is(err, store.ErrUnreadable) {
		t.unreadable = true
		t.remark("the record cannot be read: %v", err)
		h.Audit, err = auditOf(ctx, s, id)
	}
	if err != nil {
		return nil, err
	}
	h.Record.ID = id
	t.record, t.progress, t.late = h.Record, h.Progress, h.LateCompletions
	t.addRecord()
	t.addHistory(&h)
	for _, tell := range []func(context.Context, *operate.Session, Question) error{
		t.addExecutions, t.addMessages, t.addKeys, t.addExternalEvents,
	} {
		if err := tell(ctx, s, q); err != nil {
			return nil, err
		}
	}
	if t.gone() && len(t.Events) == 0 {
		return nil, fmt.Errorf("nothing is known of it: it has expired, was rejected, or is in another store: %w",
			store.ErrNotFound)
	}
	t.addUnknown()
	slices.SortStableFunc(t.Events, func(a, b Event) int { return a.At.Compare(b.At) })
	t.Record = view.OfRecord(&h.Record)
	t.Record.Unreadable, t.Record.Cursor = t.unreadable, ""
	t.Retry = t.retryGets(q.Now)
	t.Next = t.next(q)
	return t, nil
}

// auditOf reads the acts on an operation whose record cannot be read.
func auditOf(ctx context.Context, s *operate.Session, id store.ID) ([]store.AuditEntry, error) {
	auditor, ok := store.As[store.Auditor](s.Store)
	if !ok {
		return nil, nil
	}
	return auditor.Audit(ctx, id)
}

// gone reports whether there is no record.
func (t *Story) gone() bool { return t.record.State == store.StateNone && !t.unreadable }

func (t *Story) remark(format string, args ...any) {
	t.Remarks = append(t.Remarks, fmt.Sprintf(format, args...))
}

func (t *Story) add(at time.Time, what, by, detail string) {
	if !at.IsZero() {
		t.Events = append(t.Events, Event{At: at.UTC(), What: what, By: by, Detail: detail})
	}
}

// addRecord adds the facts of the record.
func (t *Story) addRecord() {
	rec := &t.record
	if rec.State == store.StateNone {
		return
	}
	t.add(rec.CreatedAt, "reserved", rec.Operation, traced(rec.TraceID))
	switch rec.State {
	case store.StateCompleted:
		t.add(rec.SettledAt, fmt.Sprintf("completed with %d", rec.Response.Status), "", "")
	case store.StateRetryable:
		t.add(rec.SettledAt, "released: nothing was done", "", rec.LastError)
	case store.StateUnknown:
		t.add(rec.SettledAt, "became unknown", "", rec.LastError)
	case store.StateExpired:
		t.add(rec.SettledAt, "removed, but for its token", "", rec.LastError)
	}
	if t.progress == nil {
		return
	}
	for _, step := range t.progress.Steps {
		shown := Step{Name: step.Name, State: step.State.String(), ProviderID: step.ProviderID}
		if step.Name == t.progress.Step {
			shown.Failure, shown.LookUpFailure = t.progress.Failure, t.progress.LookUpFailure
		}
		t.Steps = append(t.Steps, shown)
	}
}

func traced(id string) string {
	if id == "" {
		return ""
	}
	return "trace " + id
}

// addHistory adds the facts that are kept beside the record.
func (t *Story) addHistory(h *reconcile.History) {
	for i := range h.LateCompletions {
		late := &h.LateCompletions[i]
		t.add(late.At, fmt.Sprintf("a late answer with %d was refused", late.Response.Status),
			fmt.Sprintf("attempt %d", late.Attempt), "")
	}
	begun := make(map[string]time.Time)
	for i := range h.Audit {
		entry := &h.Audit[i]
		t.noteAct(entry, begun)
		what, detail := entry.Action, entry.Reason
		if entry.Outcome != "" {
			what, detail = entry.Action+": "+entry.Outcome, ""
		}
		t.add(entry.At, what, entry.Actor, detail)
	}
}

// noteAct finds attempts that were unknown in the audit: questions and resolutions are about unknown attempts only. An
// act that failed proves nothing. The attempt was unknown when the act began, which has an entry of its own.
func (t *Story) noteAct(entry *store.AuditEntry, begun map[string]time.Time) {
	act := fmt.Sprint(entry.Attempt, entry.Action, entry.Actor)
	switch {
	case strings.HasPrefix(entry.Action, "reconcile attempt "):
		t.noteUnknown(entry.Attempt, entry.At)
	case !strings.HasPrefix(entry.Action, "resolve ") && entry.Action != "retry now":
	case entry.Outcome == "":
		begun[act] = entry.At
	case entry.Outcome == "done":
		at, ok := begun[act]
		if !ok {
			at = entry.At
		}
		t.noteUnknown(entry.Attempt, at)
	}
}

// noteUnknown keeps the earliest moment at which the outcome of an attempt is known to have been unknown. Earlier
// entries than the record belong to a removed record of the same key.
func (t *Story) noteUnknown(attempt int64, at time.Time) {
	if at.Before(t.record.CreatedAt) {
		return
	}
	if t.unknown == nil {
		t.unknown = make(map[int64]time.Time)
	}
	if before, ok := t.unknown[attempt]; !ok || at.Before(before) {
		t.unknown[attempt] = at
	}
}

// addUnknown adds the attempts that were unknown. A record shows that only while it is unknown; for earlier attempts
// the first proof counts. These events come before others of the same moment, which are their proof.
func (t *Story) addUnknown() {
	later := t.Events
	t.Events = nil
	for i, attempt := range slices.Sorted(maps.Keys(t.unknown)) {
		if t.record.State == store.StateUnknown && t.record.Attempt == attempt {
			continue
		}
		cause := ""
		if i == 0 && t.record.FirstError != "" {
			cause = "the first error was " + t.record.FirstError
		}
		t.add(t.unknown[attempt], fmt.Sprintf("the outcome of attempt %d was unknown", attempt), "", cause)
	}
	t.Events = append(t.Events, later...)
}

// maxRows is the most rows of each kind that are shown.
const maxRows = 50

func (t *Story) addExecutions(ctx context.Context, s *operate.Session, _ Question) error {
	auditor, ok := store.As[store.ExecutionAuditor](s.Store)
	if !ok {
		return nil
	}
	entries, err := auditor.ListExecutions(ctx, store.AuditFilter{ID: t.record.ID, Limit: maxRows})
	if err != nil {
		return err
	}
	for i := range entries {
		e := view.OfExecution(&entries[i])
		decided := e.Decision
		if e.Origin != "" {
			decided += ", " + e.Origin
		}
		t.add(e.At, "requested: "+decided, e.Actor, "")
		if entries[i].Decision == store.DecisionUnknown {
			t.noteUnknown(e.Attempt, e.At)
		}
	}
	return nil
}

func (t *Story) addMessages(ctx context.Context, s *operate.Session, _ Question) error {
	box, ok := store.As[outbox.Store](s.Store)
	if !ok {
		return nil
	}
	entries, err := box.Messages(ctx, outbox.Filter{Origin: t.record.ID, Limit: maxRows})
	if err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		t.Messages = append(t.Messages, view.OfMessage(e))
		name := fmt.Sprintf("%s to %s, message %s", e.Type, e.Topic, e.ID)
		t.add(e.CreatedAt, "message added", "", name)
		switch e.State {
		case outbox.StateDone:
			t.add(e.Due, "message delivered", "", name)
		case outbox.StateDead, outbox.StateHolding:
			t.add(e.Due, "message became a dead letter", "", name+": "+e.LastError)
		}
	}
	return nil
}

// addKeys adds the downstream keys of the steps whose names are known.
func (t *Story) addKeys(_ context.Context, s *operate.Session, q Question) error {
	steps := slices.Clone(q.Steps)
	for _, step := range t.Steps {
		steps = append(steps, step.Name)
	}
	if t.record.State == store.StateNone || len(steps) == 0 {
		return nil
	}
	if !s.KnowsSecrets() {
		t.remark("its downstream keys are not shown: set ONCEWARD_SECRET or give --secret-file, and --namespace")
		return nil
	}
	t.DownstreamKeys = make(map[string]string)
	for _, step := range steps {
		key, err := s.Guard.DownstreamKey(&t.record, step)
		if err != nil {
			t.DownstreamKeys = nil
			t.remark("%v", err)
			return nil
		}
		t.DownstreamKeys[step] = key
	}
	return nil
}

// addExternalEvents adds the events of other systems. Stores keep events by source, so only the named sources are
// searched.
func (t *Story) addExternalEvents(ctx context.Context, s *operate.Session, q Question) error {
	keeper, ok := store.As[store.ExternalEventKeeper](s.Store)
	if !ok || len(q.Sources) == 0 {
		return nil
	}
	var subjects []string
	if t.record.ProviderID != "" {
		subjects = append(subjects, t.record.ProviderID)
	}
	for _, key := range t.DownstreamKeys {
		subjects = append(subjects, key)
	}
	for _, source := range q.Sources {
		events, err := keeper.ExternalEvents(ctx, store.ExternalEventFilter{
			Source: source, Scope: t.record.Scope, Subjects: subjects,
		})
		if err != nil {
			return err
		}
		for i := range events {
			e := &events[i]
			t.add(e.ReceivedAt, "event "+e.EventID+" received", source,
				"about "+e.Subject+", which happened "+e.At.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// Claim names the operation at the attempt that the story is about.
func (t *Story) Claim() store.Claim { return store.Claim{ID: t.record.ID, Attempt: t.record.Attempt} }

// Reveal adds the content. The caller records that in the audit.
func (t *Story) Reveal() {
	t.Revealed = reveal(&t.record.Response)
	data := t.record.Data
	if t.progress != nil {
		data = t.progress.Data
	}
	t.Revealed.Carried = view.OfContent(data)
	for i := range t.late {
		t.Revealed.Late = append(t.Revealed.Late, *reveal(&t.late[i].Response))
	}
}

func reveal(r *store.Response) *Revealed {
	shown := &Revealed{Status: r.Status, Body: view.OfContent(r.Body)}
	for _, field := range r.Header {
		if field.Name != store.SealedField {
			shown.Header = append(shown.Header, field.Name+": "+strings.TrimSpace(field.Value))
		}
	}
	return shown
}
