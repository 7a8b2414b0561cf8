package routers_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/mux"

	"github.com/onceward/onceward"
	viagorilla "github.com/onceward/onceward/lab/feature/routers/gorilla"
)

// TestRecipesTellNames: a recipe that audits its routes tells the guard the names when they are built, so that those of
// a poller are checked.
func TestRecipesTellNames(t *testing.T) {
	t.Parallel()
	for _, r := range recipes {
		if r.dir == "nethttp" || r.dir == "chi" {
			continue // they know their names when requests come
		}
		t.Run(r.dir, func(t *testing.T) {
			t.Parallel()
			s := newRecipeService(t)
			r.router(s)
			s.must(s.guard.CheckOperations(r.operation))
			if err := s.guard.CheckOperations("POST /payment"); !errors.Is(err, onceward.ErrMisconfigured) {
				t.Errorf("a name that no route has is %v, want ErrMisconfigured", err)
			}
		})
	}
}

// TestAuditUnderGorilla: the recipe finds routes that change state and are not protected.
func TestAuditUnderGorilla(t *testing.T) {
	t.Parallel()
	s := newRecipeService(t)
	router := s.built(viagorilla.NewRouter(s.guard)).(*mux.Router)
	router.HandleFunc("/login", http.NotFound).Methods(http.MethodPost)
	router.HandleFunc("/", http.NotFound).Methods(http.MethodGet)
	err := viagorilla.Audit(router)
	if err == nil || !strings.Contains(err.Error(), "not protected: POST /login:") {
		t.Errorf("a route that is not protected is %v", err)
	}
}
