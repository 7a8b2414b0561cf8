package payments

import (
	"context"
	"net/http"
	"time"
)

// openWork is what health shows. Times are those of the store: the clock of this process may be another, so how long
// ago they were is not for it to say (S3).
type openWork struct {
	Records  openRecords  `json:"records"`
	Messages OpenMessages `json:"messages"`
}

type openRecords struct {
	// ByState counts by the names of the states.
	ByState map[string]int64 `json:"by_state"`
	// DeadLetters counts the unknown records that wait for a person.
	DeadLetters   int64     `json:"dead_letters"`
	OldestUnknown time.Time `json:"oldest_unknown,omitzero"`
	// LostOwners counts the records in progress that nobody works on.
	LostOwners      int64     `json:"lost_owners"`
	OldestLostOwner time.Time `json:"oldest_lost_owner,omitzero"`
}

// health says whether the store answers, and how much is open in it. It is for load balancers and people.
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
