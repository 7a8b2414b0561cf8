// Command cmd runs the fake provider, for trying a service. It keeps its charges in memory, and answers any POST to
// /events with 204, so that a service has somewhere to send its events.
//
//	go run ./examples/provider/cmd 127.0.0.1:8090
package main

import (
	"io"
	"log"
	"net/http"
	"os"

	"github.com/onceward/onceward/examples/provider"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("want one argument: the address to listen on, such as 127.0.0.1:8090")
	}
	bank, err := provider.New(provider.Config{Dedup: true})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", bank)
	mux.HandleFunc("POST /events", func(w http.ResponseWriter, r *http.Request) {
		event, _ := io.ReadAll(r.Body)
		log.Printf("event: %s", event)
		w.WriteHeader(http.StatusNoContent)
	})
	log.Fatal(http.ListenAndServe(os.Args[1], mux))
}
