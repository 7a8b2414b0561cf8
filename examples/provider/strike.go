package provider

import (
	"net"
	"net/http"
	"time"
)

// strike applies the fault to a request, and reports whether the request continues. It
// panics with http.ErrAbortHandler if the connection must be closed without an answer.
func (p *Provider) strike(w http.ResponseWriter, r *http.Request, f fault) bool {
	p.script.arrive(f)
	switch f.Kind {
	case Delay, Hold, HoldAfter:
		p.wait(f, nil)
		return true
	case TimeoutBefore, TimeoutAfter:
		p.wait(f, r.Context().Done())
		panic(http.ErrAbortHandler)
	case ResetBefore, ResetAfter:
		reset(w)
	case ErrorBefore, ErrorAfter:
		p.write(w, failed(f.problem()))
	}
	return false
}

// wait returns when the fault is released, its delay is over, or left is closed. If the
// provider is closed meanwhile, the request is cut off as if the process had ended.
func (p *Provider) wait(f fault, left <-chan struct{}) {
	var over <-chan time.Time
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-f.released():
	case <-over:
	case <-left:
	case <-p.life.Done():
		panic(http.ErrAbortHandler)
	}
}

// problem returns the answer of an error fault. Only ErrorBefore with status 503 reports
// that nothing was done. All other answers leave the outcome unknown, as in production.
func (f fault) problem() *problem {
	status := f.Status
	if status == 0 {
		status = http.StatusInternalServerError
	}
	if f.Kind == ErrorBefore && status == http.StatusServiceUnavailable {
		return &problem{status, codeNotProcessed, "the provider is busy; the request was not processed"}
	}
	return &problem{status, codeInternal, "something went wrong"}
}

// reset closes the connection so that the client sees a reset and not a normal end.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it fails only on a closed connection, which is the goal anyway
	}
	conn.Close()
}
