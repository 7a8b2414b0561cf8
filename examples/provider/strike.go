package provider

import (
	"net"
	"net/http"
	"time"
)

// strike does to a request what the fault says, and reports whether the request goes on. It panics with
// http.ErrAbortHandler where the connection has to be closed without an answer.
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

// wait lasts until the fault is released or its delay is over, or the client leaves if that is to be noticed. If the
// provider is closed meanwhile, the request dies as it would with the process.
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

// problem is what an error fault answers. Only one that comes before the effect, with the status that promises it, says
// that nothing was done; all others leave the caller in doubt, as they do in life.
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

// reset closes the connection so that the client sees a reset and not an orderly end.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it fails only on a connection that is gone already, which is what is wanted
	}
	conn.Close()
}
