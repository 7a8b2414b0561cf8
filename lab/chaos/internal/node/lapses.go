package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// These routes make sure that old owners meet new ones, which by chance alone is rare. Neither has an effect outside:
// whose answer is stored tells who was taken for the owner.
const (
	// lapses is taken over by a retry as soon as its lease is over. Its first owner loses its heartbeats, waits until
	// it has been replaced, and then writes as if nothing had happened.
	lapses = "POST /lapses"
	// doubts ends as unknown twice before it succeeds. Only an operator settles it.
	doubts = "POST /doubts"
)

// LapseLease is how long the right to execute lasts on these routes.
const LapseLease = 600 * time.Millisecond

// The ways in which an owner that was replaced writes.
const (
	LapseComplete   = "complete"
	LapseRelease    = "release"
	LapseAbandon    = "abandon"
	LapseCheckpoint = "checkpoint"
)

// Lapse is both what is asked for and the answer.
type Lapse struct {
	Account   string `json:"account,omitempty"`
	Reference string `json:"reference"`
	// Outcome is how the first owner ends.
	Outcome string `json:"outcome,omitempty"`
	// Attempt is the one that has answered.
	Attempt int64 `json:"attempt,omitempty"`
}

const (
	// longestLapse is how long an owner waits for another one to take its place. Clients wait for longer than that.
	longestLapse = 3 * time.Second
	// holds is how long the next owner stays at it, so that the old one meets it, and so that its heartbeats are
	// needed.
	holds = 3 * LapseLease / 2
)

// silences are the leases whose heartbeats and renewals do not get through.
type silences struct {
	mu       sync.Mutex
	claims   map[store.Claim]bool
	messages map[string]bool
}

func newSilences() *silences {
	return &silences{claims: make(map[store.Claim]bool), messages: make(map[string]bool)}
}

// claim keeps the heartbeats of an attempt from getting through.
func (s *silences) claim(c store.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims[c] = true
}

// message keeps the renewals of a message from getting through.
func (s *silences) message(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages[id] = true
}

func (s *silences) silent(c store.Claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[c]
}

func (s *silences) silentMessage(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages[id]
}

// lapse is the owners of these routes.
type lapse struct {
	db       *storeurl.Database
	silences *silences
	// counts is a directory in which attempts are counted.
	counts string
}

// serve is a lapse.
func (l *lapse) serve(w http.ResponseWriter, r *http.Request) {
	var asked Lapse
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	op := onceward.FromContext(r.Context())
	if op.Origin() == store.OriginCreated {
		claim := store.Claim{ID: store.ID{Scope: op.Scope(), Key: op.Key()}, Attempt: op.Attempt()}
		l.silences.claim(claim)
		l.awaitSuccessor(context.WithoutCancel(r.Context()), claim)
		switch asked.Outcome {
		case LapseRelease:
			op.NotExecuted()
		case LapseAbandon:
			op.Unknown()
		case LapseCheckpoint:
			_ = op.Checkpoint(store.Checkpoint{Point: "too late"}) // whether the store took it shows in the journal
		}
	} else {
		time.Sleep(holds)
	}
	answerLapse(w, op, asked)
}

// awaitSuccessor waits until another attempt has been granted.
func (l *lapse) awaitSuccessor(ctx context.Context, c store.Claim) {
	ctx, cancel := context.WithTimeout(ctx, longestLapse)
	defer cancel()
	for ctx.Err() == nil {
		if rec, err := l.db.Get(ctx, c.ID); err == nil && rec.Attempt != c.Attempt {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// doubt ends as unknown at its first and at its second attempt.
func (l *lapse) doubt(w http.ResponseWriter, r *http.Request) {
	var asked Lapse
	err := json.NewDecoder(r.Body).Decode(&asked)
	attempts := int64(0)
	if err == nil {
		attempts, err = l.count(asked.Reference)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	op := onceward.FromContext(r.Context())
	if attempts > 2 {
		answerLapse(w, op, asked)
		return
	}
	op.SetReason(fmt.Sprintf("attempt %d is in doubt", attempts))
	op.Unknown()
}

// count counts an attempt, and returns how many there were. A file has as many bytes: nodes share no memory.
func (l *lapse) count(reference string) (int64, error) {
	file, err := os.OpenFile(filepath.Join(l.counts, "count-"+reference), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if _, err := file.Write([]byte{'.'}); err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func answerLapse(w http.ResponseWriter, op *onceward.Operation, asked Lapse) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	// It is kept in memory until it is stored.
	_ = json.NewEncoder(w).Encode(Lapse{Account: op.Scope(), Reference: asked.Reference, Attempt: op.Attempt()})
}
