package payments

import (
	"context"
	"net/http"
	"time"
)

// openWork is the answer of health. Its times come from the store's clock. This
// process does not convert them to ages, because its own clock may differ (S3).
type openWork struct {
	Records  openRecords  `json:"records"`
	Messages OpenMessages `json:"messages"`
}

type openRecords struct {
	// ByState counts records by the names of their states.
	ByState map[string]int64 `json:"by_state"`
	// DeadLetters counts the unknown records that need a person.
	DeadLetters   int64     `json:"dead_letters"`
	OldestUnknown time.Time `json:"oldest_unknown,omitzero"`
	// LostOwners counts the records in progress without a living owner.
	LostOwners      int64     `json:"lost_owners"`
	OldestLostOwner time.Time `json:"oldest_lost_owner,omitzero"`
}

// health reports whether the store answers, and how much work is open in it. It is for load balancers and people.
func (s *System) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timing.Call)
	defer cancel()
	records, err := s.store.Stats(ctx)
	if err != nil {
		s.broken(w, r, "ask the store", err)
		return
	}
	messages, err := s.storage.Messages(ctx)
	if err != nil {
		s.broken(w, r, "ask the outbox", err)
		return
	}
	byState := make(map[string]int64)
	for state, count := range records.Records {
		byState[state.String()] = count
	}
	answer(w, http.StatusOK, openWork{
		Records: openRecords{
			byState, records.DeadLetters, records.OldestUnknown, records.LostOwners, records.OldestLostOwner,
		},
		Messages: messages,
	})
}
