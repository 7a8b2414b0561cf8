package provider

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client calls a provider. It sends each charge and each refund once: the caller decides what a lost answer
// means. net/http may send a look-up again if a used connection breaks. Every error of Charge and Refund is
// a *DeclinedError, a *RefusedError or an *UnknownError. Every error of a look-up is a *LookUpError.
type Client struct {
	// URL is the base URL of the provider.
	URL string
	// HTTP sends the requests. Default: http.DefaultClient.
	HTTP *http.Client
}

// Charge makes a charge. The key is sent as Idempotency-Key unless it is empty.
func (c *Client) Charge(ctx context.Context, key string, req ChargeRequest) (Charge, error) {
	var charge Charge
	err := c.call(ctx, http.MethodPost, "/charges", key, req, &charge)
	return charge, err
}

// Refund gives back a charge or a part of it. The key is sent as Idempotency-Key unless it is empty.
func (c *Client) Refund(ctx context.Context, key string, req RefundRequest) (Refund, error) {
	var refund Refund
	err := c.call(ctx, http.MethodPost, "/refunds", key, req, &refund)
	return refund, err
}

// Get returns the charge with the ID. If there is none, the error has status 404.
func (c *Client) Get(ctx context.Context, id string) (Charge, error) {
	var charge Charge
	err := c.call(ctx, http.MethodGet, "/charges/"+url.PathEscape(id), "", nil, &charge)
	return charge, err
}

// Find looks up the charge that was made with the key, declined or not. It returns false if
// there is none. The charge may still be made later, because the request may be on its way.
func (c *Client) Find(ctx context.Context, idempotencyKey string) (Charge, bool, error) {
	page, err := c.page(ctx, url.Values{"idempotency_key": {idempotencyKey}, "limit": {"1"}})
	if err != nil || len(page.Data) == 0 {
		return Charge{}, false, err
	}
	return page.Data[0], true, nil
}

// FindRefund looks up the refund that was made with the key. It returns false if there
// is none. The refund may still be made later, because the request may be on its way.
func (c *Client) FindRefund(ctx context.Context, idempotencyKey string) (Refund, bool, error) {
	values := url.Values{"idempotency_key": {idempotencyKey}, "limit": {"1"}}
	var page refundPage
	err := c.call(ctx, http.MethodGet, "/refunds?"+values.Encode(), "", nil, &page)
	if err != nil || len(page.Data) == 0 {
		return Refund{}, false, err
	}
	return page.Data[0], true, nil
}

// FindReference looks up the charges with the reference, declined or not, up to a
// full page. It is the way to find a charge at a provider without idempotency keys.
func (c *Client) FindReference(ctx context.Context, reference string) ([]Charge, error) {
	page, err := c.page(ctx, url.Values{"reference": {reference}, "limit": {strconv.Itoa(maxPage)}})
	return page.Data, err
}

// List returns a page of at most limit charges that were made at or after from and that follow the charge with the ID
// after. Zero values do not restrict; a limit of zero leaves the size of the page to the provider.
func (c *Client) List(ctx context.Context, from time.Time, after string, limit int) (Page, error) {
	return c.page(ctx, listed(from, after, limit))
}

// ListRefunds is List for refunds.
func (c *Client) ListRefunds(
	ctx context.Context, from time.Time, after string, limit int,
) (made []Refund, more bool, err error) {
	var page refundPage
	err = c.call(ctx, http.MethodGet, "/refunds?"+listed(from, after, limit).Encode(), "", nil, &page)
	return page.Data, page.HasMore, err
}

func listed(from time.Time, after string, limit int) url.Values {
	values := url.Values{}
	if !from.IsZero() {
		values.Set("created_from", from.UTC().Format(time.RFC3339Nano))
	}
	if after != "" {
		values.Set("after", after)
	}
	if limit > 0 {
		values.Set("limit", strconv.Itoa(limit))
	}
	return values
}

// SetFaults replaces the script of faults.
func (c *Client) SetFaults(ctx context.Context, f Faults) error {
	return c.call(ctx, http.MethodPut, "/faults", "", f, nil)
}

// ClearFaults removes all rules and lets all held requests continue.
func (c *Client) ClearFaults(ctx context.Context) error {
	return c.call(ctx, http.MethodDelete, "/faults", "", nil, nil)
}

// Await returns when the named rule has struck count times.
func (c *Client) Await(ctx context.Context, name string, count int) error {
	return c.call(ctx, http.MethodGet, "/arrived/"+url.PathEscape(name)+"?count="+strconv.Itoa(count), "", nil, nil)
}

// Release lets the requests continue that the named rule holds, now and later.
func (c *Client) Release(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/release/"+url.PathEscape(name), "", nil, nil)
}

// Stats returns how often each kind of fault has struck since the
// start of the provider. Kinds that have not struck are missing.
func (c *Client) Stats(ctx context.Context) (map[Kind]int, error) {
	var strikes map[Kind]int
	err := c.call(ctx, http.MethodGet, "/stats", "", nil, &strikes)
	return strikes, err
}

// SetWebhook sets the webhook for all further events.
func (c *Client) SetWebhook(ctx context.Context, w Webhook) error {
	return c.call(ctx, http.MethodPut, "/webhook", "", w, nil)
}

func (c *Client) page(ctx context.Context, values url.Values) (Page, error) {
	var page Page
	err := c.call(ctx, http.MethodGet, "/charges?"+values.Encode(), "", nil, &page)
	return page, err
}

// call makes a call. A failed look-up is a *LookUpError: it gives no information about what was looked up.
func (c *Client) call(ctx context.Context, method, target, key string, in, into any) error {
	status, err := c.send(ctx, method, target, key, in, into)
	if err != nil && method == http.MethodGet {
		return &LookUpError{Status: status, Err: cmp.Or(errors.Unwrap(err), err)}
	}
	return err
}

func (c *Client) send(ctx context.Context, method, target, key string, in, into any) (status int, err error) {
	req, err := c.request(ctx, method, target, key, in)
	if err != nil {
		return 0, notSent(err)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, lost(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errors.New("the answer is too long")
	}
	if err != nil {
		return res.StatusCode, &UnknownError{Status: res.StatusCode, Err: err}
	}
	return res.StatusCode, judge(res.StatusCode, body, into)
}

// maxAnswer is the size limit of an answer: enough for a full page of charges with much metadata.
const maxAnswer = 64 << 20

func (c *Client) request(ctx context.Context, method, target, key string, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+target, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		// Under its canonical name, net/http's transport would take this header as permission to send the request again
		// when a used connection breaks. The caller would not know of it, and a script of faults would strike twice.
		req.Header[strings.ToLower(keyHeader)] = []string{key}
	}
	return req, nil
}
