SELECT count(p.price), sum(p.price) FROM trades q ASOF LEFT JOIN quotes p ON p.sym = q.sym AND q.ts >= p.ts
