package payments

import (
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
)

const jsonType = "application/json"

// problem is the body of an answer that is an error.
type problem struct {
	Error string `json:"error"`
}

// encode encodes a value like all answers, so that the answer of a refund is the same in whichever way it is made.
func encode(value any) ([]byte, error) {
	body, err := json.Marshal(value)
	return append(body, '\n'), err
}

func answer(w http.ResponseWriter, status int, value any) {
	body, err := encode(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has left retries
}

func fail(w http.ResponseWriter, status int, detail string) { answer(w, status, problem{detail}) }

// reject answers a request that is not valid. The answer is not stored: the corrected request may use the same key.
func reject(w http.ResponseWriter, r *http.Request, detail string) {
	onceward.FromContext(r.Context()).Reject()
	fail(w, http.StatusBadRequest, detail)
}

// broken answers after a failure of this system. The reason is only logged,
// because it could name hosts and tables; the client is asked to retry.
func (s *System) broken(w http.ResponseWriter, r *http.Request, doing string, err error) {
	s.config.Logger.ErrorContext(r.Context(), "payments: cannot "+doing, "error", err)
	fail(w, http.StatusServiceUnavailable, "could not "+doing+"; try again")
}
