SELECT count(*), sum(p.price) FROM few_trades q JOIN quotes p ON p.sym = q.sym AND p.ts BETWEEN q.ts - INTERVAL '7 seconds' AND q.ts + INTERVAL '7 seconds'
