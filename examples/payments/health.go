package payments

import (
	"context"
	"net/http"
	"time"
)

// health says whether the store answers, and how much is open in it. It is for load balancers and people.
func (s *System) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timing.Call)
	defer cancel()
	records, err := s.db.Stats(ctx)
	if err != nil {
		s.broken(w, r, "ask the store", err)
		return
	}
	messages, err := s.db.MessageStats(ctx)
	if err != nil {
		s.broken(w, r, "ask the outbox", err)
		return
	}
	var waited time.Duration
	if !messages.Oldest.IsZero() {
		waited = time.Since(messages.Oldest).Round(time.Millisecond)
	}
	answer(w, http.StatusOK, map[string]any{
		"records":  records,
		"messages": map[string]any{"waiting": messages.Waiting, "dead_letters": messages.DeadLetters, "oldest": waited.String()},
	})
}
