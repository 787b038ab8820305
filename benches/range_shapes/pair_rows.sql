SELECT q.id, p.ts, p.price FROM few_trades q JOIN quotes p ON p.sym = q.sym AND p.ts BETWEEN q.ts - INTERVAL '12 seconds' AND q.ts + INTERVAL '12 seconds'
