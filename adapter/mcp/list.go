package oncewardmcp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// keyDescription is the description of the key argument for a model.
const keyDescription = "Identifies this one operation, so that it happens once even if you have to call again. " +
	"Choose a new random value, such as a UUID, for each new operation. If you call again because you saw no result, " +
	"or because the result told you to, send exactly the same value and the same other arguments."

// repeatable reports whether a tool's annotations declare that a repetition does no harm.
func repeatable(tool *mcp.Tool) bool {
	return tool != nil && tool.Annotations != nil && (tool.Annotations.ReadOnlyHint || tool.Annotations.IdempotentHint)
}

// of returns the protection of a tool by its definition, or nil if it has none.
func (t *Tools) of(tool *mcp.Tool) *protection {
	if p := t.tools[tool.Name]; p != nil {
		return p
	}
	if repeatable(tool) {
		return nil
	}
	return t.tools[OtherTools]
}

// Unprotected returns the names of tools that may change state and are not protected: tools whose annotations do not
// declare that they are read-only or idempotent. It omits the tools in exempt, which need no protection.
func (t *Tools) Unprotected(tools []*mcp.Tool, exempt ...string) []string {
	var names []string
	for _, tool := range tools {
		if !repeatable(tool) && t.of(tool) == nil && !slices.Contains(exempt, tool.Name) {
			names = append(names, tool.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Audit lists the tools of a server over an in-memory connection, and returns an error with the names of the tools that
// may change state and are not protected. It is for a test, or for a program that must not start with such a tool.
func (t *Tools) Audit(ctx context.Context, server *mcp.Server, exempt ...string) error {
	there, here := mcp.NewInMemoryTransports()
	serving, err := server.Connect(ctx, there, nil)
	if err != nil {
		return err
	}
	defer serving.Close()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "onceward-audit"}, nil).Connect(ctx, here, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	var tools []*mcp.Tool
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		tools = append(tools, tool)
	}
	if names := t.Unprotected(tools, exempt...); len(names) > 0 {
		return fmt.Errorf("oncewardmcp: tools change state and are not protected: %s: name them in Config.Tools, "+
			"give them the annotation readOnlyHint or idempotentHint if it is true, or exempt them",
			strings.Join(names, ", "))
	}
	return nil
}

// describe returns a copy of a list of tools in which the protected tools are marked for callers. The server's own
// tools stay unchanged.
func (t *Tools) describe(list *mcp.ListToolsResult) *mcp.ListToolsResult {
	described := *list
	described.Tools = slices.Clone(list.Tools)
	for i, tool := range described.Tools {
		if p := t.of(tool); p != nil {
			described.Tools[i] = p.describe(tool)
		}
	}
	return &described
}

// describe returns a copy of a tool with a mark in _meta, and with the key argument in its input schema.
func (p *protection) describe(tool *mcp.Tool) *mcp.Tool {
	described := *tool
	described.Meta = maps.Clone(tool.Meta)
	if described.Meta == nil {
		described.Meta = make(mcp.Meta)
	}
	required := p.Intent == nil && p.procedure.KeyRequired()
	about := map[string]any{"required": required}
	if p.KeyArgument != "" {
		about["argument"] = p.KeyArgument
		described.InputSchema = withKey(tool.InputSchema, p.KeyArgument, required)
	}
	described.Meta[MetaKey] = about
	return &described
}

// withKey returns an input schema with the key argument, which is a required argument if required is true, even if the
// tool's own schema differs. A schema that is not an object stays unchanged: the SDK refuses such tools.
func withKey(schema any, name string, required bool) any {
	encoded, err := json.Marshal(schema)
	var object map[string]any
	if err != nil || json.Unmarshal(encoded, &object) != nil || object == nil {
		return schema
	}
	properties, _ := object["properties"].(map[string]any)
	if properties == nil {
		properties = make(map[string]any)
	}
	properties[name] = map[string]any{"type": "string", "minLength": 1, "maxLength": 255, "description": keyDescription}
	object["properties"] = properties
	names, _ := object["required"].([]any)
	names = slices.DeleteFunc(names, func(n any) bool { return n == name })
	if required {
		names = append(names, name)
	}
	if object["required"] = names; len(names) == 0 {
		delete(object, "required") // required must not be null
	}
	return object
}

// catalog stores the definitions of the listed tools.
type catalog struct {
	mu      sync.Mutex
	tools   map[string]*mcp.Tool
	changes int           // grows when the tools may have changed
	next    time.Time     // no new listing before this time; until then a tool that is not in tools counts as unlisted
	listing chan struct{} // closed when the running listing ends; nil if none is running
}

// age returns the number of changes so far, to detect a list that is out of date.
func (c *catalog) age() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// add stores the tools of a list that was requested at an age, unless they may have changed since.
func (c *catalog) add(age int, tools []*mcp.Tool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age != c.changes {
		return
	}
	if c.tools == nil {
		c.tools = make(map[string]*mcp.Tool)
	}
	for _, tool := range tools {
		c.tools[tool.Name] = tool
	}
}

func (c *catalog) get(name string) *mcp.Tool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tools[name]
}

// The bounds of a search for a tool. A server that hangs, or whose list is endless, must not block the answer to a
// call, and callers with invented names must not make the server list its tools for each name.
const (
	findTimeout  = 10 * time.Second
	maxPages     = 100
	listInterval = 30 * time.Second
	listRetry    = time.Second // after a failed listing
)

// find returns the definition of the tool of a call, or nil if the server does not list the tool. It asks the server if
// the tool is unknown, but only for one call at a time, and again only after the tools may have changed or some time
// has passed.
func (c *catalog) find(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler) *mcp.Tool {
	for {
		c.mu.Lock()
		tool, listing := c.tools[req.Params.Name], c.listing
		if tool != nil || time.Now().Before(c.next) {
			c.mu.Unlock()
			return tool
		}
		if listing == nil {
			c.listing = make(chan struct{})
			age := c.changes
			c.mu.Unlock()
			c.list(ctx, req, next, age)
			return c.get(req.Params.Name)
		}
		c.mu.Unlock()
		select {
		case <-listing:
		case <-ctx.Done():
			return nil
		}
	}
}

// list requests the tools from the server. The end of the caller's context does not stop it, because other callers wait
// for the same list.
func (c *catalog) list(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler, age int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTimeout)
	defer cancel()
	pause := listRetry
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if age == c.changes {
			c.next = time.Now().Add(pause)
		}
		close(c.listing)
		c.listing = nil
	}()
	for cursor, page := "", 0; page < maxPages; page++ {
		result, err := next(ctx, methodList, &mcp.ListToolsRequest{
			Session: req.Session, Params: &mcp.ListToolsParams{Cursor: cursor}, Extra: req.Extra,
		})
		list, ok := result.(*mcp.ListToolsResult)
		if err != nil || !ok || list == nil {
			return
		}
		c.add(age, list.Tools)
		if cursor = list.NextCursor; cursor == "" {
			break
		}
	}
	pause = listInterval
}

// forget removes all definitions, because the tools may have changed.
func (c *catalog) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tools, c.next = nil, time.Time{}
	c.changes++
}
