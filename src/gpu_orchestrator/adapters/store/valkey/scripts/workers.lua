-- Read rows of workers, each with the attempts that it holds. Callers ask for a few hundred at a time.
-- Arguments: worker names
-- Answers per worker {row as `worker_row` reads it, {task id, placement JSON, ...}}; both empty for an unknown worker
local found = {}
for number, name in ipairs(ARG[1]) do
  local row, held = worker_row(name), {}
  for _, id in ipairs(#row > 0 and redis.call('SMEMBERS', P .. 'on:' .. name) or {}) do
    held[#held + 1] = id
    held[#held + 1] = redis.call('HGET', P .. 't:' .. id, 'place') or ''
  end
  found[number] = {row, held}
end
return cmsgpack.pack({{}, found})
