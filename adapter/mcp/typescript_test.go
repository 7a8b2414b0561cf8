package oncewardmcp_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
)

// typeScriptSDK is the official client in TypeScript, as npm names it.
const typeScriptSDK = "@modelcontextprotocol/sdk@1.32.2"

// typeScriptCall lists the tools of a server, by whose output schemas the client then checks results, calls the tool
// with a key, and prints the result. It fails if the client throws.
const typeScriptCall = `
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, key] = process.argv.slice(2);
const client = new Client({ name: "test", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
await client.listTools();
const result = await client.callTool({
	name: "act", arguments: {}, _meta: { "io.github.onceward/idempotency-key": key },
});
console.log(JSON.stringify(result));
await client.close();
`

// TestTypeScriptClient: the official client in TypeScript, which throws at a result that does not fit the output
// schema of its tool, takes the problem of an unknown outcome, and then the answer that an operator has recorded.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "npm downloads the client; TestOperatorsAnswerFitsTheSchema checks the results against the schema")
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	dir := t.TempDir()
	install := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-save", "--no-package-lock",
		"--ignore-scripts", "--no-audit", "--no-fund", typeScriptSDK)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install %s: %v\n%s", typeScriptSDK, err, out)
	}
	program := filepath.Join(dir, "call.mjs")
	if err := os.WriteFile(program, []byte(typeScriptCall), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	server := mcp.NewServer(&mcp.Implementation{Name: "test"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "act"},
		func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, booked, error) {
			return nil, booked{}, errInternal
		})
	tools, err := oncewardmcp.New(b.guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("s"),
		Tools: map[string]oncewardmcp.Tool{"act": {Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.AddReceivingMiddleware(tools.Middleware)
	url := listen(t, server, "2025-11-25") // the newest version of the protocol that this client speaks
	call := func() (result struct {
		IsError           bool
		StructuredContent struct{ Number int64 }
		Meta              map[string]any `json:"_meta"`
	},
	) {
		t.Helper()
		command := exec.CommandContext(ctx, "node", program, url, "key")
		command.Stderr = os.Stderr
		out, err := command.Output()
		if err != nil {
			t.Fatalf("the client failed: %v", err)
		}
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return result
	}
	if problem, ok := call().Meta[oncewardmcp.MetaProblem].(map[string]any); !ok || problem["code"] != "outcome-unknown" {
		t.Errorf("the first call got the problem %v", problem)
	}
	b.settle("s", "key", 200, `{"number": 7}`)
	result := call()
	if result.IsError || result.StructuredContent.Number != 7 || result.Meta[oncewardmcp.MetaReplayed] != true {
		t.Errorf("after the operator's answer the client got %+v", result)
	}
}
