-- Read a page of the audit log, newest first.
-- Arguments: read entries before this number or 0 for the newest, limit
-- Answers {total, {{number, JSON}, ...}}
local before, limit = ARG[1], ARG[2]
local from = before == 0 and '+' or '(' .. text(before) .. '-0'
local found, total = {}, 0
for _, stream in ipairs({'changes', 'traffic'}) do
  local key = P .. 'audit:' .. stream
  total = total + redis.call('XLEN', key)
  for _, entry in ipairs(redis.call('XREVRANGE', key, from, '-', 'COUNT', limit)) do
    found[#found + 1] = {tonumber(string.match(entry[1], '^%d+')), entry[2][2]}
  end
end
table.sort(found, function(a, b) return a[1] > b[1] end)
for at = #found, limit + 1, -1 do found[at] = nil end
return cmsgpack.pack({{}, {total, found}})
