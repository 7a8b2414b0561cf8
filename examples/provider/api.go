package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotent-Replayed"

	maxBody      = 1 << 20
	maxKey       = 255
	maxPage      = 1000
	defaultLimit = 100
)

// answer is what a request comes to. It is kept apart from the response, because a fault may swallow it.
type answer struct {
	status   int
	body     any
	replayed bool
	event    *Event
}

// task is a request that is read and well formed, but not done yet.
type task struct {
	// reference is what the rules of the faults can match: that of the charge which the request is about.
	reference string
	do        func() answer
}

// api makes a handler that faults can strike.
func (p *Provider) api(read func(*http.Request) (task, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, err := read(r)
		if err != nil {
			p.write(w, failed(err))
			return
		}
		p.perform(w, r, t)
	}
}

// perform does the task, with the faults before and after it. Without a fault the event goes out after the answer, so
// that a test which orders nothing sees them in this order.
func (p *Provider) perform(w http.ResponseWriter, r *http.Request, t task) {
	subject := Match{Method: r.Method, Path: r.URL.Path, Reference: t.reference}
	fault := p.script.pick(subject, Kind.onRequest)
	if fault.Kind.before() && !p.strike(w, r, fault) {
		return
	}
	done := t.do()
	hook := p.webhookFault(subject, done.event)
	early := hook.Kind == WebhookFirst || fault.Kind.after()
	if early {
		p.courier.announce(done.event, hook)
	}
	if fault.Kind.after() && !p.strike(w, r, fault) {
		return
	}
	p.write(w, done)
	if !early {
		p.courier.announce(done.event, hook)
	}
}

// webhookFault spends a rule about webhooks only if there is an event for it.
func (p *Provider) webhookFault(subject Match, event *Event) fault {
	if event == nil {
		return fault{}
	}
	f := p.script.pick(subject, Kind.onWebhook)
	p.script.arrive(f)
	return f
}

func (p *Provider) postCharge(r *http.Request) (task, error) {
	var req ChargeRequest
	key, err := readOrder(r, &req)
	if err != nil {
		return task{}, err
	}
	if err := req.validate(); err != nil {
		return task{}, err
	}
	do := func() answer {
		charge, replayed, err := p.book.charge(key, req)
		if err != nil {
			return failed(err)
		}
		done := answer{status: http.StatusCreated, body: charge, replayed: replayed}
		if charge.Status == Declined {
			done.status = http.StatusPaymentRequired
		}
		if !replayed {
			done.event = eventOf(charge)
		}
		return done
	}
	return task{reference: req.Reference, do: do}, nil
}

func (p *Provider) postRefund(r *http.Request) (task, error) {
	var req RefundRequest
	key, err := readOrder(r, &req)
	if err != nil {
		return task{}, err
	}
	if err := req.validate(); err != nil {
		return task{}, err
	}
	charge, _ := p.book.find(req.Charge)
	do := func() answer {
		refund, replayed, err := p.book.refund(key, req)
		if err != nil {
			return failed(err)
		}
		done := answer{status: http.StatusCreated, body: refund, replayed: replayed}
		if !replayed {
			done.event = refundEvent(refund)
		}
		return done
	}
	return task{reference: charge.Reference, do: do}, nil
}

func (p *Provider) getCharge(r *http.Request) (task, error) {
	id := r.PathValue("id")
	charge, _ := p.book.find(id)
	do := func() answer {
		// It is looked up again: what was held in between has to show.
		charge, ok := p.book.find(id)
		if !ok {
			return failed(notFound(id))
		}
		return answer{status: http.StatusOK, body: charge}
	}
	return task{reference: charge.Reference, do: do}, nil
}

func (p *Provider) listCharges(r *http.Request) (task, error) {
	q, err := readQuery(r.URL.Query())
	if err != nil {
		return task{}, err
	}
	do := func() answer { return answer{status: http.StatusOK, body: p.book.list(q)} }
	return task{reference: q.reference, do: do}, nil
}

// listRefunds gives the faults no reference to match: a query names at most that of a refund, and theirs is that of a
// charge.
func (p *Provider) listRefunds(r *http.Request) (task, error) {
	q, err := readQuery(r.URL.Query())
	if err != nil {
		return task{}, err
	}
	return task{do: func() answer { return answer{status: http.StatusOK, body: p.book.listRefunds(q)} }}, nil
}

func readQuery(values url.Values) (query, error) {
	q := query{
		key: values.Get("idempotency_key"), reference: values.Get("reference"), after: values.Get("after"),
		limit: defaultLimit,
	}
	// An empty value is a caller's mistake. To read it as no restriction would find what another caller did.
	for _, name := range []string{"idempotency_key", "reference"} {
		if values.Has(name) && values.Get(name) == "" {
			return query{}, invalid(name + " must not be empty")
		}
	}
	if text := values.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 || limit > maxPage {
			return query{}, invalid("limit must be a number from 1 to " + strconv.Itoa(maxPage))
		}
		q.limit = limit
	}
	for name, at := range map[string]*time.Time{"created_from": &q.from, "created_to": &q.to} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return query{}, invalid(name + " must be a time as in RFC 3339")
		}
		*at = parsed
	}
	return q, nil
}

// readOrder reads the key and the body of a request that asks for an effect.
func readOrder(r *http.Request, into any) (key string, err error) {
	key = r.Header.Get(keyHeader)
	if len(key) > maxKey {
		return "", invalid("the Idempotency-Key is too long")
	}
	return key, readJSON(r, into)
}

// readJSON reads the body to its end, because net/http notices only then that a client leaves.
func readJSON(r *http.Request, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		return invalid("the body cannot be read: " + err.Error())
	}
	if err := decodeStrictly(body, into); err != nil {
		return invalid("the body is not what is expected: " + err.Error())
	}
	return nil
}

// decodeStrictly refuses fields that are not known: a rule or a request with a slip of the pen must not pass for
// another.
func decodeStrictly(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}

func failed(err error) answer {
	var known *problem
	if !errors.As(err, &known) {
		known = &problem{http.StatusInternalServerError, codeInternal, err.Error()}
	}
	return answer{status: known.status, body: problemDocument{known}}
}

// write sends the answer at once, so that it is on its way before anything that follows it.
func (p *Provider) write(w http.ResponseWriter, a answer) {
	body, err := json.Marshal(a.body)
	if err != nil {
		p.log.Error("the provider cannot encode an answer", "error", err)
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if a.replayed {
		w.Header().Set(replayedHeader, "true")
	}
	w.WriteHeader(a.status)
	// The client may be gone. The effect stays, and that is the client's problem to find out.
	_, _ = w.Write(body)
	// Nor does it matter here whether the client got it.
	_ = http.NewResponseController(w).Flush()
}
